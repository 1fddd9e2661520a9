// The dashboard: polls the server's counters once a second and shows them.

import { Client } from "../api/client.js";
import { el, say, the } from "../dom.js";
import { number, t, translatePage } from "../language/language.js";
import { getKey } from "../store/prefs.js";
import { askKey } from "../view/key.js";
import { banner } from "../view/notice.js";
import { themeSwitch } from "../view/theme.js";
import { plot } from "./plot.js";
import { Series } from "./series.js";

const EVERY_MS = 1000;
const client = new Client(getKey);
const series = new Series();
let asking = null;

async function ask() {
  clearTimeout(asking);
  try {
    show(await client.json("/dashboard/stats"));
    banner("");
  } catch (trouble) {
    series.broken();
    if (trouble.kind === "key") {
      const give = () => askKey(() => (banner(""), ask()));
      banner(t("The server asks for an API key."), { label: t("Give the key"), run: give });
      give();
      return;
    }
    banner(trouble.message, { label: t("Try again"), run: ask });
  }
  asking = setTimeout(ask, EVERY_MS);
}

function show(found) {
  const now = series.add(found);
  tiles(now);
  const options = { now: found.time, most: 3, label: (value) => number(Math.round(value)) };
  draw("rate-plot", "rate", { ...options, most: 30 }, t("{rate} tokens a second", { rate: whole(now.rate) }));
  draw("running-plot", "running", options, t("{count} requests run", { count: now.running }));
  const used = t("{share} of the KV cache", { share: percent(now.kv) });
  draw("kv-plot", "kv", { ...options, most: 0.03, label: percent }, used);
  the("models").replaceChildren(...found.models.map(row));
}

function tiles(now) {
  say(the("rate"), whole(now.rate));
  say(the("rate-note"), t("{count} since the start", { count: whole(now.generated) }));
  say(the("running"), String(now.running));
  say(the("waiting"), now.waiting ? t("{count} wait", { count: now.waiting }) : t("none wait"));
  say(the("kv"), percent(now.kv));
  const blocks = { used: whole(now.used), all: whole(now.blocks), kept: whole(now.kept) };
  say(the("kv-note"), t("{used} of {all} blocks, {kept} kept for later", blocks));
  say(the("first"), now.first ? time(now.first.p50) : "–");
  const slowest = now.first && t("or less for half, {time} for 99 %", { time: time(now.first.p99) });
  say(the("first-note"), slowest || t("no request yet"));
}

function draw(id, name, options, line) {
  const canvas = the(id);
  canvas.setAttribute("aria-label", line);
  plot(canvas, series.points, name, options);
}

function row({ name, state, percent: done, stats }) {
  const { stop = 0, length = 0, ...others } = stats?.requests ?? {};
  const failed = Object.values(others).reduce((a, b) => a + b, 0);
  const share = stats?.prompt_tokens ? stats.cached_tokens / stats.prompt_tokens : 0;
  const told = stats
    ? [stats.running, stats.waiting, stop + length, failed, stats.generated_tokens, stats.prompt_tokens]
        .map(whole)
        .concat(percent(share))
    : Array(7).fill("–");
  return el(
    "tr",
    {},
    el("td", {}, name),
    el("td", {}, state === "loading" ? t("loading, {percent} %", { percent: done }) : t(state)),
    ...told.map((text) => el("td", {}, text)),
  );
}

const whole = (value) => number(Math.round(value));
const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

function time(seconds) {
  if (seconds === null) return t("very long");
  return seconds < 1 ? `${whole(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

translatePage();
document.title = `${t("Dashboard")} · Satchel`;
themeSwitch(the("theme"));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(asking) : ask()));
ask();
