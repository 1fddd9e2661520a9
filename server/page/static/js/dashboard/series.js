// The measurements of the last two minutes, computed from the server's counters.

export const SPAN_S = 120;

export class Series {
  constructor() {
    this.points = []; // {time, rate, running, kv}
    this.before = null;
  }

  /** Adds a response of /dashboard/stats; returns the sums over all models. */
  add({ time, models }) {
    const now = sums(models);
    const { before } = this;
    const passed = before ? time - before.time : 0;
    // Counters restart with the server.
    const made = before ? Math.max(0, now.generated - before.generated) : 0;
    now.rate = passed > 0 ? made / passed : 0;
    this.before = { time, generated: now.generated };
    this.points.push({ time, rate: now.rate, running: now.running, kv: now.kv });
    while (this.points[0].time < time - SPAN_S) this.points.shift();
    return now;
  }

  /** Leaves a gap until the next response. */
  broken() {
    this.before = null;
  }
}

function sums(models) {
  const found = models.map((m) => m.stats).filter(Boolean);
  const sum = (name) => found.reduce((total, stats) => total + stats[name], 0);
  const [blocks, free, kept] = ["kv_blocks", "kv_free", "kv_kept"].map(sum);
  // Cached blocks are evicted when memory is needed, so they do not count as in use.
  const used = Math.max(0, blocks - free - kept);
  return {
    generated: sum("generated_tokens"),
    running: sum("running"),
    waiting: sum("waiting"),
    kv: blocks ? used / blocks : 0,
    blocks,
    used,
    kept,
    first: found.map((stats) => stats.seconds.time_to_first_token).find((s) => s.count) ?? null,
  };
}
