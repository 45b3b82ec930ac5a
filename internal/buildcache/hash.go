package buildcache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
)

// digest hashes a sequence of texts so that no two sequences are alike: each
// has its length before it.
type digest struct{ h hash.Hash }

func newDigest(domain string) digest {
	d := digest{sha256.New()}
	d.add(domain)
	return d
}

func (d digest) add(texts ...string) {
	for _, t := range texts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(t)))
		d.h.Write(n[:])
		d.h.Write([]byte(t))
	}
}

// pairs adds a map, and its size, so that what follows is told apart.
func (d digest) pairs(m map[string]string) {
	d.add(count(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.add(k, m[k])
	}
}

func (d digest) sum() string { return hex.EncodeToString(d.h.Sum(nil)) }

func count(n int) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return string(b[:])
}
