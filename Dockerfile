# syntax=docker/dockerfile:1
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /weir
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
COPY src src
# The reference is made from it.
COPY conf/weir.toml conf/weir.toml
# The manifest names the tests; they are not built.
COPY integration/main.rs integration/main.rs
RUN cargo build --locked --profile dist --bin weir

FROM debian:12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 587 --home-dir /var/lib/weir --shell /usr/sbin/nologin weir \
    && install -d -o weir -g weir -m 0700 /var/lib/weir
COPY --from=build /weir/target/dist/weir /usr/local/bin/weir
USER 587
# The configuration is mounted at /etc/weir: listeners on ports above 1024, [admin] address = "127.0.0.1:9587".
VOLUME /var/lib/weir
EXPOSE 5587
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s --start-period=5s CMD ["curl", "--fail", "--silent", "http://127.0.0.1:9587/readyz"]
ENTRYPOINT ["weir"]
CMD ["serve", "-c", "/etc/weir/weir.toml"]
