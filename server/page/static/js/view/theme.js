// The switch between the system's theme, light and dark.

import { icon } from "../icons.js";
import { t } from "../language/language.js";
import { getPref, setPref } from "../store/prefs.js";

const THEMES = ["system", "light", "dark"];

export function themeSwitch(button) {
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const label = t(`Theme: ${theme}`);
    button.replaceChildren(icon(theme));
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  let theme = getPref("theme", "system");
  if (!THEMES.includes(theme)) theme = "system";
  show(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setPref("theme", theme);
    show(theme);
  });
}
