#!/usr/bin/env bash
# Commits and tags a release: npm run release -- VERSION, or major, minor, patch. Nothing is pushed.
set -euo pipefail
cd "$(dirname "$0")"

[[ $# -eq 1 ]] || { echo "usage: npm run release -- VERSION" >&2; exit 2; }
[[ -z $(git status --porcelain) ]] || { echo "commit or stash what has changed first" >&2; exit 1; }
grep -qx '## Unreleased' CHANGELOG.md || { echo "CHANGELOG.md has nothing under Unreleased" >&2; exit 1; }

old=$(node -p 'require("./package.json").version')
npm version --no-git-tag-version "$1" > /dev/null
new=$(node -p 'require("./package.json").version')
npm version --no-git-tag-version --prefix client "$new" > /dev/null
sed -i "s/${old//./\\.}/$new/g" \
  proto/investor/v1/openapi.json deploy/kubernetes/base/kustomization.yaml examples/*/package.json
sed -i "s/^## Unreleased$/## $new - $(date +%F)/" CHANGELOG.md
# What later releases must not break.
buf build --path proto/investor/v1 --exclude-source-info -o proto/released.txtpb

git commit --quiet --all --message "Release $new"
git tag --annotate --message "$new" "v$new"
echo "v$new is committed and tagged: git push --follow-tags"
