// Waiting that can be stopped.

/** Resolves after so many milliseconds; rejects with an AbortError where the signal comes first. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stopped = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    if (signal.aborted) stopped();
    signal.addEventListener("abort", stopped, { once: true });
  });
}
