// How much of the model's context the conversation fills.

import { say, the } from "../dom.js";
import { number, t } from "../language/language.js";

const NARROW = 0.85; // used share from which the meter warns

/** used, room: tokens in use, and of the context; room is null while unknown. */
export function showMeter(used, room) {
  const meter = the("meter");
  meter.hidden = !room;
  if (!room) return;
  const share = Math.min(1, used / room);
  const [taken, whole] = [number(Math.min(used, room)), ` / ${number(room)}`];
  say(the("meter-used"), taken);
  say(the("meter-room"), whole);
  the("meter-bar").style.inlineSize = `${100 * share}%`;
  meter.classList.toggle("narrow", share > NARROW);
  meter.title = t("{used} tokens of the model's context are used", { used: taken + whole });
}
