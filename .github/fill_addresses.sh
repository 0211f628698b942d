#!/bin/sh
# Put real addresses where README.md and the notebook have placeholders; run from the root.
#
#   fill_addresses.sh OWNER/REPOSITORY https://OWNER.github.io/REPOSITORY
#
# The release workflow calls it. A fork calls it with its own name, or leaves it.
set -eu
repository=$1
book=${2%/}
for file in README.md docs/colab.ipynb; do
    sed "s#https://OWNER\.github\.io/REPOSITORY#$book#g; s#OWNER/REPOSITORY#$repository#g" "$file" > "$file.new"
    mv "$file.new" "$file"
done
