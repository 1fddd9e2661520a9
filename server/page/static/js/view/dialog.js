// Dialogs over the page: one at a time, with a title; Escape closes them.

import { el } from "../dom.js";

/** Opens a dialog with this content and returns it; null while one with this id is open. */
export function openDialog(id, title, ...content) {
  if (document.querySelector(`dialog#${id}`)?.open) return null;
  const heading = el("h2", { id: `${id}-title` }, title);
  const onclose = (event) => event.target.remove();
  const dialog = el("dialog", { id, "aria-labelledby": heading.id, onclose }, heading, ...content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** The row of buttons at a dialog's end. */
export function dialogButtons(...buttons) {
  return el("div", { class: "edit-buttons" }, ...buttons);
}
