# The service with the Node.js of the image to build in, which must have npm, too. The one to run on
# needs glibc and the C++ library; libatomic, which Node.js needs as well, comes with it.
ARG BUILD_IMAGE=docker.io/library/node:26.12.1-trixie-slim
ARG BASE_IMAGE=gcr.io/distroless/cc-debian13

FROM ${BUILD_IMAGE} AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts --workspaces=false
COPY tsconfig.json rolldown.config.ts ./
COPY gen gen
COPY src src
ARG REVISION
RUN npm run build && npm prune --omit=dev --ignore-scripts --workspaces=false
RUN mkdir -p /out/lib /out/volume && mkdir -m 0700 /out/volume/data /out/volume/backups \
  && cp "$(command -v node)" /out/node && rm -rf node_modules/.bin \
  && cp -L "$(ldd /out/node | sed -n 's/.* => \(.*libatomic.*\) .*/\1/p')" /out/lib

FROM ${BASE_IMAGE}
COPY --from=build /out/node /usr/local/bin/node
COPY --from=build /out/lib /usr/lib
COPY --from=build --chown=10001:10001 /out/volume /
WORKDIR /app
COPY --from=build /app/package.json ./
COPY --from=build /app/node_modules node_modules
COPY --from=build /app/gen gen
COPY --from=build /app/dist dist
COPY proto proto
COPY LICENSE deploy/healthcheck.js deploy/backup.js deploy/backups.js deploy/restore.js ./
ARG REVISION
LABEL org.opencontainers.image.title="Investor Records" \
  org.opencontainers.image.licenses="MIT" \
  org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENV HOST=:: DATABASE_URL=sqlite:///data/investors.db
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=40s CMD ["node", "healthcheck.js"]

ENTRYPOINT ["node", "dist/bin.js"]
