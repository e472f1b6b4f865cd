#!/bin/sh
# Fills a folder with what an image to begin with needs, of this machine: a shell, Node.js (the
# first argument after the folder) and npm (the second, its folder).
set -eu
root=$1 node=$2 npm=$3

mkdir -p "$root/usr/local/bin" "$root/usr/local/lib/node_modules" "$root/tmp" "$root/root"
for program in "$node" /bin/sh /usr/bin/env /bin/mkdir /bin/chmod /bin/cp /bin/rm /bin/readlink; do
  for file in "$program" $(ldd "$program" | grep -o '/[^ ]*'); do
    [ "$file" = "$node" ] && continue
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
done
# A part of the C library that addons of packages load.
libraries=$(dirname "$(ldd "$node" | grep -o '/[^ ]*/libc.so.6')")
cp -L "$libraries/librt.so.1" "$root$libraries/"
cp -L "$node" "$root/usr/local/bin/node"
cp -r "$npm" "$root/usr/local/lib/node_modules/npm"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
cat > "$root/Dockerfile" <<EOF
FROM scratch
COPY . /
ENV PATH=/usr/local/bin:/usr/bin:/bin HOME=/root
EOF
