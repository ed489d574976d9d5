// Builds and updates the document. Data becomes text nodes and attributes only, never HTML.

/** Handlers that `patch` copies from new elements to present ones. */
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown"];

/**
 * Returns an element. Attributes with the value null, undefined or false are left out; `on…` attributes are handlers;
 * `width` is a share from 0 to 1 that becomes the element's width. Children are nodes, texts, numbers, or arrays of them.
 */
export function h(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Returns an SVG element. */
export function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith("on")) element[name] = value;
        else if (name === "width" && !(element instanceof SVGElement)) element.style.width = `${(100 * value).toFixed(1)}%`;
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    add(element, children);
    return element;
}

function add(element, children) {
    for (const child of children) {
        if (child === null || child === undefined || child === false) continue;
        if (Array.isArray(child)) add(element, child);
        else element.append(child instanceof Node ? child : String(child));
    }
}

/** Characters that change or hide the text around them: controls, and marks of the writing direction. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/** Returns a text that a client may have chosen, with invisible characters written out. */
export function visible(text) {
    return String(text).replace(INVISIBLE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** Returns a text that a client may have chosen as an element, isolated from the writing direction around it. */
export function foreign(text) {
    return h("bdi", { class: "foreign" }, visible(text));
}

/** Returns a message of several lines, aligned by spaces. */
export function lines(text, label = "Explanation") {
    const safe = String(text).split("\n").map(visible).join("\n");
    return h("pre", { class: "lines", tabindex: "0", role: "region", "aria-label": label }, safe);
}

/**
 * Changes the children of `present` into `wanted` with few changes, so that focus, selection, scroll position and opened
 * details stay. Elements with the same `data-key` are the same; the content of an element with `data-keep` stays.
 */
export function patch(present, wanted) {
    const nodes = Array.isArray(wanted) ? wanted.flat(Infinity).filter((node) => node) : [wanted];
    const keyed = new Map();
    for (const child of present.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
    let place = present.firstChild;
    for (const node of nodes) {
        const key = node.dataset?.key;
        const same = key ? keyed.get(key) : place;
        if (!same || !alike(same, node)) {
            present.insertBefore(node, place);
            continue;
        }
        keyed.delete(key);
        if (same === place) place = place.nextSibling;
        else present.insertBefore(same, place);
        update(same, node);
    }
    while (place) {
        const next = place.nextSibling;
        place.remove();
        place = next;
    }
}

function alike(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.dataset?.key === b.dataset?.key && a.id === b.id;
}

function update(present, wanted) {
    if (present.nodeType !== Node.ELEMENT_NODE) {
        if (present.data !== wanted.data) present.data = wanted.data;
        return;
    }
    for (const name of HANDLERS) if (present[name] !== wanted[name]) present[name] = wanted[name];
    if ("keep" in present.dataset) return;
    for (const { name } of [...present.attributes]) {
        // The reader opens details; a style is set below, because the policy of the page forbids style attributes.
        if (name !== "open" && name !== "style" && !wanted.hasAttribute(name)) present.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
        if (name !== "open" && name !== "style" && present.getAttribute(name) !== value) present.setAttribute(name, value);
    }
    if (present.style.cssText !== wanted.style.cssText) present.style.cssText = wanted.style.cssText;
    patch(present, [...wanted.childNodes]);
}
