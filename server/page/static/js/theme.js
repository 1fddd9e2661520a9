// Runs before the page is drawn, so that a chosen theme does not flash: no module, for those run after.
(() => {
  let theme = null;
  try {
    theme = JSON.parse(localStorage.getItem("satchel.theme"));
  } catch {
    // Use the system's theme.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
