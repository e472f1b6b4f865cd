#!/usr/bin/env bash
# Commits and tags a release, and puts the artifacts in release/. Nothing is pushed.
# npm run release -- VERSION, or major, minor, patch. After --dry-run, it is made in a clone and shown.
set -euo pipefail
cd "$(dirname "$0")"

dry=
[[ ${1:-} == --dry-run ]] && { dry=yes; shift; }
[[ $# -eq 1 ]] || { echo "usage: npm run release -- [--dry-run] VERSION" >&2; exit 2; }
[[ -z $(git status --porcelain) ]] || { echo "commit or stash what has changed first" >&2; exit 1; }
grep -qx '## Unreleased' CHANGELOG.md || { echo "CHANGELOG.md has nothing under Unreleased" >&2; exit 1; }

if [[ $dry ]]; then
  clone=$(mktemp -d)
  trap 'rm -rf "$clone"' EXIT
  git clone --quiet --config user.name="$(git config user.name)" \
    --config user.email="$(git config user.email)" . "$clone"
  ln -s "$PWD/node_modules" "$clone"
  "$clone/release.sh" "$1" > /dev/null
  git -C "$clone" show
  rm -rf release
  mv "$clone/release" .
  cat release/SHA256SUMS
  exit
fi

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

rm -rf release
mkdir release
# Packing builds them, also where npm is told to run no scripts.
npm pack --silent --ignore-scripts=false --pack-destination release . ./client
# Of the server's own packages: with --omit dev, npm leaves out those that the tests need, too.
mkdir release/investor-records
cp package.json package-lock.json release/investor-records
(
  cd release/investor-records
  npm pkg delete devDependencies workspaces
  npm install --silent --ignore-scripts --package-lock-only
  npm sbom --package-lock-only --sbom-format cyclonedx > "../investor-records-$new.cdx.json"
)
rm -r release/investor-records
(cd release && sha256sum -- investor-records* > SHA256SUMS)

git tag --annotate --message "$new" "v$new"
echo "v$new is committed and tagged, release/ made: git push --follow-tags"
