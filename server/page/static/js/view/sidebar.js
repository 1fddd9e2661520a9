// The list of conversations and their folders: search, rename, move, export, delete.

import { el, the } from "../dom.js";
import { icon, iconButton } from "../icons.js";
import { t } from "../language/language.js";
import { titleOf } from "../store/conversation.js";
import { getPref, setPref } from "../store/prefs.js";

const DAY = 86_400_000;

export class Sidebar {
  /**
   * on: {open(c), rename(c, title), save(c), remove(c), move(c), renameFolder(folder, name), removeFolder(folder)};
   * state: {list(search), open(), running(c), folders()}.
   */
  constructor(state, on) {
    Object.assign(this, { state, on, renaming: null });
    this.place = the("conversations");
    this.search = the("search");
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.key === "Escape" && this.search.value) {
      event.stopPropagation();
      this.search.value = "";
      this.draw();
    } else if (event.key === "Enter") this.place.querySelector(".conversation-link")?.click();
    else if (event.key === "ArrowDown") {
      event.preventDefault();
      this.place.querySelector(".conversation-link, .folder-name")?.focus();
    }
  }

  draw() {
    if (this.renaming) return; // an answer that ends must not take the field away
    const found = this.state.list(this.search.value);
    const folders = this.state.folders();
    const inside = new Set(folders.map((folder) => folder.id));
    const nodes = [];
    for (const folder of folders) {
      const held = found.filter((c) => c.folder === folder.id);
      if (held.length || !this.search.value) nodes.push(this.folder(folder, held));
    }
    let group = "";
    for (const conversation of found) {
      if (inside.has(conversation.folder)) continue;
      const name = groupOf(conversation.updated);
      if (name !== group) nodes.push(el("h2", {}, t(name)));
      group = name;
      nodes.push(this.row(conversation));
    }
    if (!found.length)
      nodes.push(el("p", { class: "none" }, t(this.search.value ? "Nothing found." : "No conversations yet.")));
    this.place.replaceChildren(...nodes);
  }

  /** A folder with its conversations, which a search unfolds. */
  folder(folder, held) {
    const { name } = folder;
    const open = Boolean(this.search.value) || !getPref("folded", []).includes(folder.id);
    const head = el("h2", { class: "folder-head" });
    const rename = () => this.renameFolder(folder);
    const button = el(
      "button",
      {
        type: "button",
        class: "folder-name",
        "aria-expanded": String(open),
        onclick: () => this.unfold(folder, !open),
        onkeydown: (event) => key(event, rename),
      },
      icon("folder"),
      name,
      el("span", { class: "folder-count", "aria-hidden": "true" }, String(held.length)),
    );
    const tools = el(
      "span",
      { class: "conversation-tools" },
      iconButton("pencil", t("Rename {title}", { title: name }), rename),
      iconButton("trash", t("Remove {name}", { name }), () => this.on.removeFolder(folder)),
    );
    head.append(button, tools);
    return el(
      "div",
      { class: "folder", "data-id": folder.id },
      head,
      ...(open ? held.map((one) => this.row(one)) : []),
    );
  }

  /** Shows or hides what a folder holds. */
  unfold({ id }, open) {
    const others = getPref("folded", []).filter((one) => one !== id);
    setPref("folded", open ? others : [...others, id]);
    const within = this.place.contains(document.activeElement);
    this.draw();
    if (within) this.place.querySelector(`[data-id="${id}"] .folder-name`)?.focus();
  }

  renameFolder(folder) {
    const head = this.place.querySelector(`[data-id="${folder.id}"] .folder-head`);
    if (head) this.rename(head, t("Name of the folder"), folder.name, (name) => this.on.renameFolder(folder, name));
  }

  /** The conversation that has the focus in the list, null for none. */
  focused() {
    return document.activeElement?.closest(".conversation")?.conversation ?? null;
  }

  row(conversation) {
    const title = titleOf(conversation);
    const current = conversation.id === this.state.open()?.id;
    const { on } = this;
    const rename = () =>
      this.rename(row, t("Name of the conversation"), title, (name) => on.rename(conversation, name));
    const link = el(
      "button",
      {
        type: "button",
        class: "conversation-link",
        title,
        "aria-current": current && "true",
        onclick: () => on.open(conversation),
        onkeydown: (event) => key(event, rename),
      },
      title,
    );
    const row = el(
      "div",
      { class: `conversation${this.state.running(conversation) ? " running" : ""}` },
      link,
      el(
        "span",
        { class: "conversation-tools" },
        iconButton("pencil", t("Rename {title}", { title }), rename),
        iconButton("folder", t("Move {title}", { title }), () => on.move(conversation)),
        iconButton("export", t("Export {title}", { title }), () => on.save(conversation)),
        iconButton("trash", t("Delete {title}", { title }), () => on.remove(conversation)),
      ),
    );
    return Object.assign(row, { conversation });
  }

  /** Turns a row into a field of its name; keep(name) takes the new one. */
  rename(row, label, name, keep) {
    const field = el("input", { class: "rename", "aria-label": label, maxlength: "200" });
    field.value = name;
    this.renaming = field;
    const end = (kept) => {
      if (this.renaming !== field) return;
      this.renaming = null;
      if (kept && field.value.trim()) keep(field.value.trim());
      else this.draw();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) end(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    row.replaceChildren(field);
    field.select();
  }
}

/** Arrow keys go from one conversation or folder to the next; F2 renames. */
function key(event, rename) {
  if (event.key === "F2") {
    event.preventDefault();
    rename();
  }
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const links = [...document.querySelectorAll(".conversation-link, .folder-name")];
  const next = links[links.indexOf(event.currentTarget) + by];
  (next ?? (by < 0 ? the("search") : event.currentTarget)).focus();
}

function groupOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 6 * DAY) return "The last seven days";
  return "Earlier";
}
