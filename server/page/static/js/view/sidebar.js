// The list of conversations: search, rename, export, delete.

import { el, the } from "../dom.js";
import { iconButton } from "../icons.js";
import { t } from "../language/language.js";
import { titleOf } from "../store/conversation.js";

const DAY = 86_400_000;

export class Sidebar {
  /** on: {open(c), rename(c, title), save(c), remove(c)}; state(): {list(search), open, running(c)}. */
  constructor(state, on) {
    Object.assign(this, { state, on });
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
      this.place.querySelector(".conversation-link")?.focus();
    }
  }

  draw() {
    const found = this.state.list(this.search.value);
    const nodes = [];
    let group = "";
    for (const conversation of found) {
      const name = groupOf(conversation.updated);
      if (name !== group) nodes.push(el("h2", {}, t(name)));
      group = name;
      nodes.push(this.row(conversation));
    }
    if (!found.length)
      nodes.push(el("p", { class: "none" }, t(this.search.value ? "Nothing found." : "No conversations yet.")));
    this.place.replaceChildren(...nodes);
  }

  row(conversation) {
    const title = titleOf(conversation);
    const current = conversation.id === this.state.open()?.id;
    const { on } = this;
    const link = el(
      "button",
      {
        type: "button",
        class: "conversation-link",
        title,
        "aria-current": current && "true",
        onclick: () => on.open(conversation),
        onkeydown: step,
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
        iconButton("pencil", t("Rename {title}", { title }), () => this.rename(row, conversation)),
        iconButton("export", t("Export {title}", { title }), () => on.save(conversation)),
        iconButton("trash", t("Delete {title}", { title }), () => on.remove(conversation)),
      ),
    );
    return row;
  }

  rename(row, conversation) {
    const field = el("input", {
      class: "rename",
      "aria-label": t("Name of the conversation"),
      maxlength: "200",
    });
    field.value = titleOf(conversation);
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      if (keep && field.value.trim()) this.on.rename(conversation, field.value.trim());
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

/** Arrow keys go from one conversation to the next. */
function step(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const links = [...document.querySelectorAll(".conversation-link")];
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
