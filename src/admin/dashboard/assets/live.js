// Live updates: server-sent events make a page refresh, at most once a second.

import { begin } from "./api.js";

/** Minimum time from the end of a refresh to the next, in milliseconds. */
const MIN_INTERVAL = 1_000;
/** Time after which a page refreshes without an event. */
const IDLE_INTERVAL = 5_000;
/** Bounds of the pause before a new attempt to connect. */
const [MIN_PAUSE, MAX_PAUSE] = [1_000, 30_000];

/**
 * Calls `refresh` when events arrive, and every few seconds. Calls `status` with null when the stream of events is open,
 * and with the seconds to the next attempt when it is lost. A hidden tab has no stream and does not refresh.
 */
export class Live {
    constructor(refresh, status) {
        Object.assign(this, { refresh, status, kind: "refused", stream: null, isDirty: false, last: 0, pause: MIN_PAUSE });
        document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
        window.addEventListener("online", () => this.start());
    }

    /** Sets the kind of the events, `refused` or `act`. Each stream is one of the few readers that Weir serves. */
    listenTo(kind) {
        if (this.kind === kind) return;
        this.kind = kind;
        if (this.stream) this.open();
    }

    start() {
        this.stop();
        this.isDirty = true;
        this.open();
        this.schedule();
    }

    stop() {
        clearTimeout(this.timer);
        clearTimeout(this.retry);
        this.close();
    }

    /** Makes the next refresh as early as possible. */
    hurry() {
        this.isDirty = true;
        this.schedule();
    }

    open() {
        this.close();
        const stream = new EventSource(`/v1/events?kind=${this.kind}`);
        this.stream = stream;
        // The events only tell that there is something new: a flood costs no more than a flag.
        for (const name of ["decision", "act", "missed"]) stream.addEventListener(name, () => this.onEvent());
        stream.onopen = () => {
            this.pause = MIN_PAUSE;
            this.status(null);
        };
        stream.onerror = () => this.lost();
    }

    close() {
        this.stream?.close();
        this.stream = null;
    }

    onEvent() {
        if (!this.isDirty) this.hurry();
    }

    /** Waits, then connects again. The refresh tells meanwhile whether Weir answers at all. */
    lost() {
        this.close();
        const pause = this.pause * (0.8 + 0.4 * Math.random());
        this.pause = Math.min(2 * this.pause, MAX_PAUSE);
        this.status(Math.ceil(pause / 1_000));
        clearTimeout(this.retry);
        this.retry = setTimeout(() => this.again(), pause);
        this.hurry();
    }

    /** Opens the stream again if Weir answers. */
    async again() {
        try {
            await begin();
        } catch {
            return this.lost();
        }
        this.open();
        this.hurry();
    }

    schedule() {
        clearTimeout(this.timer);
        if (document.hidden || this.isRunning) return;
        const wait = this.last + (this.isDirty ? MIN_INTERVAL : IDLE_INTERVAL) - performance.now();
        this.timer = setTimeout(() => this.run(), Math.max(0, wait));
    }

    async run() {
        this.isRunning = true;
        this.isDirty = false;
        try {
            await this.refresh();
        } finally {
            this.last = performance.now();
            this.isRunning = false;
            this.schedule();
        }
    }
}
