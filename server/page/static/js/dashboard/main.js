// The dashboard: polls the server's counters once a second and shows them.

import { Client } from "../api/client.js";
import { el, say, the } from "../dom.js";
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
      banner("The server asks for an API key.", { label: "Give the key", run: give });
      give();
      return;
    }
    banner(trouble.message, { label: "Try again", run: ask });
  }
  asking = setTimeout(ask, EVERY_MS);
}

function show(found) {
  const now = series.add(found);
  tiles(now);
  const options = { now: found.time, most: 3, label: (value) => Math.round(value).toLocaleString() };
  draw("rate-plot", "rate", { ...options, most: 30 }, `${whole(now.rate)} tokens a second`);
  draw("running-plot", "running", options, `${now.running} requests run`);
  draw("kv-plot", "kv", { ...options, most: 0.03, label: percent }, `${percent(now.kv)} of the KV cache`);
  the("models").replaceChildren(...found.models.map(row));
}

function tiles(now) {
  say(the("rate"), whole(now.rate));
  say(the("rate-note"), `${whole(now.generated)} since the start`);
  say(the("running"), String(now.running));
  say(the("waiting"), now.waiting ? `${now.waiting} wait` : "none wait");
  say(the("kv"), percent(now.kv));
  say(the("kv-note"), `${whole(now.used)} of ${whole(now.blocks)} blocks, ${whole(now.kept)} kept for later`);
  say(the("first"), now.first ? time(now.first.p50) : "–");
  say(the("first-note"), now.first ? `or less for half, ${time(now.first.p99)} for 99 %` : "no request yet");
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
    el("td", {}, state === "loading" ? `loading, ${done} %` : state),
    ...told.map((text) => el("td", {}, text)),
  );
}

const whole = (value) => Math.round(value).toLocaleString();
const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

function time(seconds) {
  if (seconds === null) return "very long";
  return seconds < 1 ? `${whole(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

themeSwitch(the("theme"));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(asking) : ask()));
ask();
