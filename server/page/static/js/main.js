// The chat page: joins the library of conversations, the server and the views.

import { Client } from "./api/client.js";
import { say, the } from "./dom.js";
import { t, translatePage } from "./language/language.js";
import {
  add,
  choose,
  followers,
  parentOf,
  remove,
  revise,
  shown,
  snapshot,
  takeOver,
  versions,
} from "./store/branches.js";
import { isEmpty, question, reply, titleOf } from "./store/conversation.js";
import { Library } from "./store/library.js";
import { getKey, getPref, setPref } from "./store/prefs.js";
import { settingsOf } from "./store/settings.js";
import { asMarkdown } from "./store/markdown.js";
import { download, exported, imported } from "./store/transfer.js";
import { Turn } from "./turn.js";
import { Composer } from "./view/composer.js";
import { askFormat } from "./view/export.js";
import { askFolder } from "./view/folder.js";
import { askKey } from "./view/key.js";
import { shortcuts, showShortcuts } from "./view/keys.js";
import { languageMenu } from "./view/language.js";
import { showMeter } from "./view/meter.js";
import { ModelsDialog } from "./view/models.js";
import { announce, banner, toast } from "./view/notice.js";
import { Panels } from "./view/panels.js";
import { ModelPicker } from "./view/picker.js";
import { SettingsPanel } from "./view/settings.js";
import { Sidebar } from "./view/sidebar.js";
import { themeSwitch } from "./view/theme.js";
import { Thread } from "./view/thread.js";

const SAVE_MS = 1000; // how often an answer in progress is stored

class App {
  constructor(library) {
    this.library = library;
    this.client = new Client(getKey);
    this.turns = new Map(); // answers in progress, by conversation
    this.saved = 0;
    this.panels = new Panels();
    this.picker = new ModelPicker(this.client, {
      chosen: (id) => this.choose(id),
      trouble: (t) => this.trouble(t),
    });
    this.models = new ModelsDialog(this.client, () => this.remodelled());
    this.settings = new SettingsPanel({ changed: () => this.settled(), asDefaults: () => this.asDefaults() });
    this.composer = new Composer(this.client, {
      send: (t, documents) => this.ask(t, documents),
      stop: () => this.stop(),
      editLast: () => this.editLast(),
    });
    this.sidebar = new Sidebar(
      {
        list: (search) => library.list(search),
        open: () => this.open,
        running: (c) => this.turns.has(c.id),
        folders: () => library.folders,
      },
      {
        open: (c) => this.show(c),
        rename: (c, title) => this.rename(c, title),
        save: (c) => this.save([c], [library.folderOf(c)].filter(Boolean)),
        remove: (c) => this.removeConversation(c),
        move: (c) => this.move(c),
        renameFolder: (folder, name) => this.folder(name, folder),
        removeFolder: (folder) => this.removeFolder(folder),
      },
    );
    this.thread = new Thread({
      ask: (text) => this.ask(text),
      answer: () => this.answer(),
      again: (message) => this.again(message),
      onward: (message) => this.answer({ onward: message }),
      edit: (message, text) => this.edit(message, text),
      remove: (message) => this.removeMessage(message),
      step: (message, by) => this.step(message, by),
      overflow: () => this.overflow(),
    });
    this.bind();
  }

  bind() {
    shortcuts({
      search: () => this.search(),
      fresh: () => this.fresh(),
      move: () => this.move(this.sidebar.focused() ?? this.open),
      sidebar: () => this.panels.toggle("sidebar"),
      settings: () => this.panels.toggle("settings"),
      models: () => this.models.open(),
      escape: () => this.panels.closeOver() || this.stop(),
    });
    the("new-chat").addEventListener("click", () => this.fresh());
    the("new-folder").addEventListener("click", () => this.newFolder());
    the("shortcuts").addEventListener("click", showShortcuts);
    languageMenu(the("language"), () => this.turns.size && this.busyNote());
    the("export-all").addEventListener("click", () => this.save(this.library.list(), this.library.folders));
    the("import").addEventListener("click", () => the("import-file").click());
    the("import-file").addEventListener("change", (event) => this.load(event.target));
  }

  async start() {
    this.show(this.library.get(getPref("open", "")) ?? this.blank());
    if (!this.library.lasting)
      toast(t("This browser keeps no data for the page: conversations end with it. Export what you need."));
    await this.connect();
  }

  /** Asks the server for its models, and again while one is loading. */
  async connect() {
    try {
      const { sampling, version } = await this.client.json("/page/options");
      this.settings.setRanges(sampling);
      the("version").textContent = `Satchel ${version}`;
      await this.picker.refresh();
      this.picker.show(this.open.model);
      await this.client.send("/health");
      banner("");
      this.metered();
    } catch (trouble) {
      this.trouble(trouble);
    }
  }

  /** Shows what is wrong with the server, and what to do. */
  trouble(trouble) {
    const again = () => {
      banner("");
      this.connect();
    };
    if (trouble.kind === "key") {
      banner(t("The server asks for an API key."), { label: t("Give the key"), run: () => askKey(again) });
      askKey(again);
    } else if (trouble.kind === "loading") {
      const { percent } = trouble;
      const lines = ["The model is being loaded. You can write already."];
      if (percent) lines.push("The model is being loaded: {percent} %. You can write already.");
      banner(t(lines.at(-1), { percent }));
      setTimeout(() => this.connect(), 1000);
    } else {
      banner(trouble.message, { label: t("Try again"), run: again });
    }
  }

  get turn() {
    return this.turns.get(this.open.id) ?? null;
  }

  blank() {
    return this.library.create({ model: getPref("model", ""), ...getPref("defaults", {}) });
  }

  show(conversation) {
    this.open = conversation;
    setPref("open", conversation.id);
    this.settings.open(conversation);
    this.picker.show(conversation.model);
    this.thread.open(conversation, this.turn);
    this.panels.closeOver();
    this.refresh();
    this.composer.focus();
  }

  /** Updates everything around the thread. */
  refresh() {
    const title = titleOf(this.open);
    document.title = this.open.messages.length ? `${title} · Satchel` : "Satchel";
    say(the("title"), title);
    this.sidebar.draw();
    this.composer.show(Boolean(this.turn));
    this.metered();
  }

  metered() {
    const counts = shown(this.open).findLast((m) => m.counts?.prompt)?.counts;
    const coming = this.turn?.tokens ?? 0;
    showMeter(counts ? counts.prompt + counts.generated + coming : coming, this.picker.room(this.open.model));
  }

  fresh() {
    if (this.open.messages.length) this.show(this.blank());
    else this.composer.focus();
  }

  search() {
    this.panels.show("sidebar", true);
    the("search").focus();
    the("search").select();
  }

  /** Shows the setting of what a full context does. */
  overflow() {
    this.panels.show("settings", true);
    the("overflow").focus();
  }

  ask(text, documents) {
    if (this.turn) return;
    this.askAfter(question(text, documents), shown(this.open).at(-1));
  }

  /** Asks a question after a message (null: as the first one), and shows its answer. */
  askAfter(asked, before) {
    add(this.open, asked, before);
    this.answer({ asked });
    this.thread.follow.toEnd();
  }

  /** Answers a question, by default the last one; onward: continues this answer instead. */
  async answer({ asked = shown(this.open).at(-1), onward = null } = {}) {
    const conversation = this.open;
    if (this.turns.has(conversation.id)) return;
    conversation.model = this.picker.chosen;
    const message = onward ?? reply();
    if (!onward) add(conversation, message, asked);
    const turn = new Turn(this.client, conversation, message, {
      changed: (t) => this.came(t),
      room: this.picker.room(conversation.model),
      going: Boolean(onward),
    });
    this.turns.set(conversation.id, turn);
    this.keep(conversation);
    this.thread.set(conversation, turn);
    this.refresh();
    announce(t("Satchel answers."));
    await turn.run();
    this.turns.delete(conversation.id);
    await this.ended(turn);
  }

  came(turn) {
    if (turn.conversation === this.open) {
      this.thread.soon();
      this.metered();
    }
    const now = performance.now();
    if (now - this.saved < SAVE_MS) return;
    this.saved = now;
    this.keep(turn.conversation);
  }

  async ended(turn) {
    const { conversation, message } = turn;
    const last = !followers(conversation, message).length;
    if (last && isEmpty(message) && message.finish === "stopped") remove(conversation, message);
    if (this.library.get(conversation.id)) await this.keep(conversation);
    if (conversation === this.open) {
      this.thread.set(conversation, null);
      const end = t(message.finish === "stopped" ? "Stopped." : "The answer is complete.");
      announce(message.trouble || end);
    }
    if (turn.kind === "key") askKey(() => this.again(message));
    else if (turn.kind !== "away") await this.picker.refresh().catch(() => {});
    if (conversation === this.open) this.picker.show(conversation.model);
    this.refresh();
  }

  stop() {
    this.turn?.stop();
  }

  /** Whether an answer of the open conversation is under way; says so. */
  busy() {
    if (this.turn) this.busyNote();
    return Boolean(this.turn);
  }

  /** Says that an answer is under way, which must be stopped before. */
  busyNote() {
    toast(t("An answer is under way: stop it first."));
    return true;
  }

  /** Makes another version of an answer. An empty one, such as that of an error, is replaced. */
  again(message) {
    if (!this.open.messages.includes(message) || this.busy()) return;
    const asked = parentOf(this.open, message);
    if (isEmpty(message) && !followers(this.open, message).length) remove(this.open, message);
    this.answer({ asked });
    this.thread.follow.toEnd();
    this.composer.focus(); // the button that had the focus is gone
  }

  /** Shows the version before or after this one. */
  step(message, by) {
    const all = versions(this.open, message);
    const version = all[all.indexOf(message) + by];
    if (!version) return;
    choose(this.open, version);
    this.changedMessages(this.open, { touched: false });
    this.thread.focusVersion(version, by);
    announce(t("Version {at} of {all}", { at: all.indexOf(version) + 1, all: all.length }));
  }

  editLast() {
    const last = shown(this.open).findLast((m) => m.role === "user");
    if (!last || this.turn) return false;
    this.thread.edit(last);
    return true;
  }

  edit(message, text) {
    if (this.busy()) return;
    if (message.role === "assistant") {
      revise(this.open, message, text);
      this.changedMessages(this.open);
    } else if (text === message.content) this.answer({ asked: message });
    else this.askAfter(question(text, message.documents), parentOf(this.open, message));
    this.composer.focus();
  }

  removeMessage(message) {
    if (this.busy()) return;
    const conversation = this.open;
    const restore = snapshot(conversation);
    remove(conversation, message);
    this.changedMessages(conversation);
    const undo = () => {
      restore();
      this.changedMessages(conversation);
    };
    toast(t("The message was deleted."), { label: t("Undo"), run: undo });
  }

  changedMessages(conversation, how) {
    this.keep(conversation, how);
    if (conversation === this.open) this.thread.draw();
    this.refresh();
  }

  rename(conversation, title) {
    conversation.title = title;
    this.keep(conversation, { touched: false });
    this.refresh();
  }

  async removeConversation(conversation) {
    this.turns.get(conversation.id)?.stop();
    await this.library.remove(conversation);
    if (conversation === this.open) this.show(this.library.list()[0] ?? this.blank());
    this.refresh();
    const undo = async () => {
      await this.keep(conversation, { touched: false });
      this.show(conversation);
    };
    toast(t("“{title}” was deleted.", { title: titleOf(conversation) }), { label: t("Undo"), run: undo });
  }

  /** Stores a folder, by default a new one, under a name. */
  async folder(name, folder) {
    const kept = await this.library.keepFolder(name, folder).catch((error) => toast(error.message));
    this.refresh();
    return kept;
  }

  /** Makes a folder, with a conversation in it where one is given, and asks for its name. */
  async newFolder(conversation = null) {
    const made = await this.folder(t("New folder"));
    if (!made) return;
    if (conversation) this.moveTo(conversation, made);
    this.panels.show("sidebar", true);
    this.sidebar.renameFolder(made);
  }

  move(conversation) {
    askFolder(this.library.folders, this.library.folderOf(conversation), {
      chosen: (folder) => this.moveTo(conversation, folder),
      fresh: () => this.newFolder(conversation),
    });
  }

  moveTo(conversation, folder) {
    conversation.folder = folder?.id ?? "";
    if (conversation.messages.length) this.keep(conversation, { touched: false });
    if (folder) this.sidebar.unfold(folder, true);
    this.refresh();
    const names = { title: titleOf(conversation), folder: folder?.name };
    announce(folder ? t("{title} is in {folder} now.", names) : t("{title} is in no folder now.", names));
  }

  async removeFolder(folder) {
    await this.library.removeFolder(folder);
    this.refresh();
    const undo = () => this.folder(folder.name, folder);
    const line = t("“{title}” was removed. Its chats are outside now.", { title: folder.name });
    toast(line, { label: t("Undo"), run: undo });
  }

  choose(id) {
    this.open.model = id;
    setPref("model", id);
    this.settled();
    this.metered();
  }

  /** The server has other models, or holds others in memory. */
  async remodelled() {
    await this.picker.refresh().catch((trouble) => this.trouble(trouble));
    this.picker.show(this.open.model);
    this.metered();
  }

  /** Called when the settings changed. A conversation is stored once it has a message. */
  settled() {
    if (this.open.messages.length) this.keep(this.open, { touched: false });
  }

  asDefaults() {
    setPref("defaults", settingsOf(this.open));
    toast(t("New chats begin with these settings."));
  }

  async keep(conversation, how) {
    try {
      await this.library.keep(conversation, how);
    } catch (error) {
      toast(error.message);
    }
  }

  save(conversations, folders) {
    if (!conversations.length) {
      toast(t("There is no conversation to export yet."));
      return;
    }
    askFormat((format) => {
      const name = `satchel-${new Date().toISOString().slice(0, 10)}`;
      if (format === "json") download(`${name}.json`, exported(conversations, folders), "application/json");
      else download(`${name}.md`, asMarkdown(conversations), "text/markdown");
    });
  }

  async load(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      const count = await this.library.take(await imported(file));
      toast(
        count > 1
          ? t("{count} conversations imported.", { count })
          : t(count ? "1 conversation imported." : "All of these conversations are here already."),
      );
      this.thread.set(this.open, this.turn);
      this.refresh();
    } catch (error) {
      toast(error.message);
    }
  }

  /** Another tab changed a conversation. */
  elsewhere(id) {
    const stored = this.library.get(id);
    const turn = this.turns.get(id);
    if (turn) {
      if (stored) takeOver(turn.conversation, stored.messages, turn.message);
      this.library.held.set(id, turn.conversation);
      if (turn.conversation === this.open) this.thread.draw();
    } else if (this.open.id === id && stored) {
      this.open = stored;
      this.thread.open(stored, null);
      this.settings.open(stored);
    }
    this.refresh();
  }
}

translatePage();
themeSwitch(the("theme"));
let app = null;
const library = await Library.open((id) => app?.elsewhere(id));
app = new App(library);
await app.start();
