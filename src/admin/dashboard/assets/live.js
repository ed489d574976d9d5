// Live updates: server-sent events make a page refresh, at most once a second.

import { begin } from "./api.js";

/** Minimum time from the end of a refresh to the next, in milliseconds. */
const MIN_INTERVAL = 1_000;
/** Time after which a page refreshes without an event. */
const IDLE_INTERVAL = 5_000;
/** Bounds of the pause before a new attempt to connect. */
const [MIN_PAUSE, MAX_PAUSE] = [1_000, 30_000];

/**
 * Calls `refresh` when events arrive, and every few seconds. Calls `status` with null when the stream is open, and with
 * the seconds to the next attempt when it is lost. A hidden tab has no stream and does not refresh.
 */
export class Live {
    constructor(refresh, status) {
        Object.assign(this, { refresh, status, streams: [], isDirty: false, last: 0, pause: MIN_PAUSE });
        document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
        window.addEventListener("online", () => this.start());
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
        for (const kind of ["refused", "act"]) {
            const stream = new EventSource(`/v1/events?kind=${kind}`);
            this.streams.push(stream);
            // The events only tell that there is something new: a flood costs no more than a flag.
            for (const name of ["decision", "act", "missed"]) stream.addEventListener(name, () => this.onEvent());
            stream.onopen = () => {
                this.pause = MIN_PAUSE;
                this.status(null);
            };
            stream.onerror = () => this.lost();
        }
    }

    close() {
        for (const stream of this.streams) stream.close();
        this.streams = [];
    }

    onEvent() {
        if (!this.isDirty) this.hurry();
    }

    lost() {
        if (this.streams.length === 0) return;
        this.close();
        const pause = this.pause * (0.8 + 0.4 * Math.random());
        this.pause = Math.min(2 * this.pause, MAX_PAUSE);
        this.status(Math.ceil(pause / 1_000));
        clearTimeout(this.retry);
        this.retry = setTimeout(() => this.again(), pause);
    }

    /** Opens the streams again if Weir answers. */
    async again() {
        try {
            await begin();
        } catch {
            this.streams = [{ close() {} }];
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
