package statefile

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the limit of label values. Longer object names are allowed but hard to read.
const maxName = 63

// maxDigits bounds the hexadecimal digits of a digest in a name.
const maxDigits = 32

// slug returns the preferred name of an object: the modules, the name and the key, joined by
// dashes.
func slug(prefix string, a Address) string {
	parts := []string{prefix}
	for _, step := range a.Module {
		parts = append(parts, step.Name, keyText(step.Key))
	}
	parts = append(parts, a.Name, keyText(a.Key))
	var b strings.Builder
	dash := false
	for _, r := range strings.ToLower(strings.Join(parts, "-")) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			if dash && b.Len() > 0 {
				b.WriteByte('-')
			}
			dash = false
			b.WriteRune(r)
			continue
		}
		dash = true
	}
	return b.String()
}

func keyText(k Key) string { return strings.Trim(k.String(), `[]"`) }

// A nameRequest asks for the name of an instance. Names are unique within a type across all
// Providers, because references identify an object by type and name alone.
type nameRequest struct {
	of      string // the type
	slug    string
	address string
	// digits is the number of digits of the address's digest at the end of the name.
	digits int
}

func (w *nameRequest) name() string {
	digits := w.digits
	if digits == 0 && (len(w.slug) > maxName || w.slug == "") {
		digits = 8
	}
	if digits == 0 {
		return w.slug
	}
	sum := sha256.Sum256([]byte(w.address))
	end := hex.EncodeToString(sum[:])[:digits]
	if w.slug == "" {
		return "resource-" + end
	}
	return strings.TrimRight(w.slug[:min(len(w.slug), maxName-1-len(end))], "-") + "-" + end
}

// assignNames assigns each request a unique name. All requests for the same name get a longer one,
// so that names do not depend on the order of the file. The names in taken, by type, are in use.
func assignNames(requests []*nameRequest, taken map[string]map[string]bool) []string {
	names := make([]string, len(requests))
	for {
		wanted := map[[2]string]int{}
		for i, w := range requests {
			names[i] = w.name()
			wanted[[2]string{w.of, names[i]}]++
		}
		raised := false
		for i, w := range requests {
			if wanted[[2]string{w.of, names[i]}] > 1 || taken[w.of][names[i]] {
				// Two addresses do not have the same digest; the bound is for duplicate addresses.
				if w.digits < maxDigits {
					w.digits += 8
					raised = true
				}
			}
		}
		if !raised {
			return names
		}
	}
}
