// The shell: chooses the page by the address's fragment, and keeps it up to date.

import { ApiError, Unreachable, begin, logOut, session } from "./api.js";
import { foreign, h, patch } from "./dom.js";
import { zoneName } from "./format.js";
import { Live } from "./live.js";
import { section } from "./parts.js";
import * as audit from "./audit.js";
import * as egress from "./egress.js";
import * as exceptions from "./exceptions.js";
import * as limits from "./limits.js";
import * as now from "./now.js";
import * as refusals from "./refusals.js";
import * as sender from "./sender.js";
import * as senders from "./senders.js";
import * as sessions from "./sessions.js";
import * as whatIf from "./what-if.js";

/**
 * Pages by the first part of the fragment. A page has `title(view)`, `load(view)`, which asks the API, and
 * `render(view, data)`, which returns nodes; perhaps `drawn(view, data, main)`, called after they are in the document.
 * A page with `isForm` is not refreshed. `events` is the kind of the events that refresh a page; default: `refused`.
 */
const PAGES = { now, senders, sender, refusals, refusal: refusals, limits, exceptions, egress, audit, "what-if": whatIf, sessions };

const main = document.getElementById("main");
const notice = document.getElementById("connection");
const live = new Live(refresh, connection);

/** The shown page: `page`, `part` (the rest of the path), `parameters` of the fragment, and `state` of the page. */
let view = null;

function readAddress() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const [name, ...rest] = path.split("/");
    const known = Object.hasOwn(PAGES, name) ? name : "now";
    return {
        name: known,
        page: PAGES[known],
        part: decoded(rest.join("/")),
        parameters: new URLSearchParams(query ?? ""),
        state: {},
        abort: new AbortController(),
        update: () => draw(view),
        reload: () => live.hurry(),
    };
}

/** Returns the text that a part of the address stands for; a malformed part stands for itself. */
function decoded(part) {
    try {
        return decodeURIComponent(part);
    } catch {
        return part;
    }
}

async function show() {
    const isFirst = view === null;
    view?.abort.abort();
    view = readAddress();
    live.listenTo(view.page.events ?? "refused");
    const title = view.page.title(view);
    document.title = `${title} – Weir`;
    for (const link of document.querySelectorAll("nav a")) {
        const isThis = link.getAttribute("href") === `#/${view.name === "refusal" ? "refusals" : view.name}`;
        if (isThis) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
        // On a phone, the list of pages is wider than the screen.
        if (isThis) link.scrollIntoView({ block: "nearest", inline: "center" });
    }
    patch(main, [h("h1", { tabindex: "-1", "data-key": `title ${location.hash}` }, title), h("p", { class: "empty", "data-key": "loading" }, "Loading …")]);
    main.setAttribute("aria-busy", "true");
    window.scrollTo(0, 0);
    await refresh();
    // The first page begins at its top, as every page does; a later one at its heading, so that screen readers read it.
    if (!isFirst && document.activeElement === document.body) main.querySelector("h1")?.focus({ preventScroll: true });
}

async function refresh() {
    const mine = view;
    if (!mine || (mine.page.isForm && mine.isLoaded)) return;
    try {
        mine.data = await mine.page.load(mine);
        mine.problem = null;
        mine.isLoaded = true;
        isReachable = true;
    } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof ApiError || error instanceof Unreachable)) console.error(error);
        // The note above the page tells of a lost connection; the page keeps its content.
        if (!(error instanceof Unreachable && mine.isLoaded)) mine.problem = error;
        isReachable = !(error instanceof Unreachable);
    }
    showConnection();
    if (mine === view) draw(mine);
}

function draw(mine) {
    if (mine !== view) return;
    main.removeAttribute("aria-busy");
    const title = h("h1", { tabindex: "-1", "data-key": `title ${location.hash}` }, mine.page.heading?.(mine) ?? mine.page.title(mine));
    const problem = mine.problem && h("p", { class: "problem", role: "alert", "data-key": "problem" }, foreign(mine.problem.message));
    if (!mine.isLoaded) return patch(main, [title, problem]);
    patch(main, [title, problem, mine.page.render(mine, mine.data)]);
    mine.page.drawn?.(mine, mine.data, main);
    if (!mine.isMeasured) performance.mark("weir-drawn");
    mine.isMeasured = true;
}

/** Seconds until the next attempt to open the stream of events; null while it is open. */
let retryAfter = null;
/** False after a request without an answer. */
let isReachable = true;

function connection(seconds) {
    retryAfter = seconds;
    showConnection();
}

/** Shows that the connection is lost, or that only the live events are. */
function showConnection() {
    let words = "";
    if (!isReachable) words = "Connection lost: these numbers are old. Trying again …";
    else if (retryAfter !== null) words = "No live events: this page is updated every few seconds.";
    if (notice.textContent !== words) notice.textContent = words;
    notice.classList.toggle("lost", !isReachable);
    notice.hidden = words === "";
}

function fillHeader() {
    const who = document.getElementById("who");
    who.replaceChildren(foreign(session.name), session["may-act"] ? "" : " (may only read)");
    document.getElementById("version").textContent = `Weir ${session.version ?? ""}; times in ${zoneName()}`;
    document.getElementById("log-out").onclick = logOut;
    document.getElementById("skip").onclick = (event) => {
        event.preventDefault();
        main.querySelector("h1")?.focus();
    };
}

try {
    await begin();
    fillHeader();
    window.addEventListener("hashchange", show);
    // After a logout, the browser may still keep the page for its button "back".
    window.addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
    window.addEventListener("weir-acted", () => live.hurry());
    await show();
    live.start();
} catch (error) {
    patch(main, [section("The dashboard cannot start", h("p", { class: "problem" }, foreign(error.message)))]);
}
