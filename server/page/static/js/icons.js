// Line icons on a grid of 24, drawn for this page.

import { el, svg } from "./dom.js";

const PATHS = {
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  check: "M5 12.5l4.5 4.5L19 7.5",
  pencil: "M5 19l1-4L16.5 4.5l3 3L9 18zM14.5 6.5l3 3",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  onward: "M5 12h13M13 7l5 5-5 5",
  back: "M14.5 6l-6 6 6 6",
  forth: "M9.5 6l6 6-6 6",
  plus: "M12 5v14M5 12h14",
  folder: "M3.5 6.5h6l2 2.5h9v10h-17z",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.5 11v5M13.5 11v5",
  close: "M6 6l12 12M18 6L6 18",
  document: "M7 3.5h7l4 4V20.5H7zM14 3.5v4h4M10 12h5M10 16h5",
  export: "M12 15V4M8 8l4-4 4 4M5 14v5.5h14V14",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  light:
    "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  dark: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-3 3 .5 2 2 .5 3-3a4 4 0 0 1-5.5 5L9 20.5a2 2 0 0 1-3-3l7.5-7.5a4 4 0 0 1 1-3.5z",
};

export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" },
    svg("path", { d: PATHS[name] }),
  );
}

/** A button that is an icon; its label is read aloud and shown on hover. */
export function iconButton(name, label, onclick, props = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props },
    icon(name),
  );
}
