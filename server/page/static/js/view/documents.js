// Documents beside a question: added by a button, by dropping files on the page, or by pasting them.

import { el, the } from "../dom.js";
import { icon, iconButton } from "../icons.js";
import { number, t } from "../language/language.js";
import { readDocument } from "../store/documents.js";
import { toast } from "./notice.js";

const MOST = 10; // documents of a question

/** Documents of the question that is being written. */
export class Documents {
  /** client: reads PDFs. changed(): the list changed. */
  constructor(client, changed) {
    Object.assign(this, { client, changed, list: [], reading: 0 });
    this.place = the("documents");
    const input = the("document-files");
    the("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.add([...input.files]);
      input.value = "";
    });
    the("question").addEventListener("paste", (event) => this.pasted(event));
    document.addEventListener("dragover", (event) => this.dragged(event));
    document.addEventListener("dragleave", (event) => !event.relatedTarget && this.hover(false));
    document.addEventListener("drop", (event) => this.dropped(event));
  }

  pasted(event) {
    const files = [...event.clipboardData.files];
    // Cells of a table are copied with a picture of them beside their text.
    if (!files.length || event.clipboardData.types.includes("text/html")) return;
    event.preventDefault();
    this.add(files);
  }

  dragged(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.hover(true);
  }

  dropped(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.hover(false);
    this.add([...event.dataTransfer.files]);
  }

  hover(on) {
    document.body.classList.toggle("dropping", on);
  }

  async add(files) {
    for (const file of files) {
      if (this.list.length >= MOST) {
        toast(t("A question takes {most} documents at most.", { most: MOST }));
        return;
      }
      await this.read(file);
    }
    the("question").focus();
  }

  async read(file) {
    this.count(1);
    try {
      const { note, ...read } = await readDocument(file, this.client);
      this.list.push(read);
      if (note) toast(note);
    } catch (error) {
      toast(error.message);
    }
    this.count(-1);
  }

  count(by) {
    this.reading += by;
    this.draw();
  }

  /** The documents, which the question takes with it. */
  take() {
    const taken = this.list;
    this.list = [];
    this.draw();
    return taken;
  }

  draw() {
    const chips = this.list.map((one) =>
      el(
        "span",
        { class: "document" },
        icon("document"),
        el("span", { class: "document-name", title: one.name }, one.name),
        iconButton("close", t("Remove {name}", { name: one.name }), () => this.remove(one)),
      ),
    );
    if (this.reading) chips.push(el("span", { class: "document waits" }, t("Reading a document")));
    this.place.replaceChildren(...chips);
    this.place.hidden = !chips.length;
    this.changed();
  }

  remove(one) {
    this.list = this.list.filter((other) => other !== one);
    this.draw();
    the("question").focus();
  }
}

/** A document of a question that was asked, folded. */
export function documentPart({ name, text }) {
  const size = el("span", { class: "note" }, t("{count} characters", { count: number(text.length) }));
  return el(
    "details",
    { class: "document-part" },
    el("summary", {}, icon("document"), el("span", { class: "document-name" }, name), size),
    el("pre", { tabindex: "0" }, text),
  );
}
