package adopt

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// longestName is that of labels: longer names are allowed, and nobody can read them.
const longestName = 63

// mostDigits of a digest stand in a name.
const mostDigits = 32

// slug is what an object is called if nobody else wants the name: the modules, the name and the key, joined by dashes.
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

// A wish is an instance that looks for its name. Within a type no two names are the same, whichever Providers serve it:
// references name an object by type and name alone.
type wish struct {
	of      string // the type
	slug    string
	address string
	// digits of the address's digest that the name ends with.
	digits int
}

func (w *wish) name() string {
	digits := w.digits
	if digits == 0 && (len(w.slug) > longestName || w.slug == "") {
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
	return strings.TrimRight(w.slug[:min(len(w.slug), longestName-1-len(end))], "-") + "-" + end
}

// grant gives each wish a name of its own. All that want the same name get a longer one, so that names do not depend on the order in a
// file. Taken are names that are given already, by type.
func grant(wishes []*wish, taken map[string]map[string]bool) []string {
	names := make([]string, len(wishes))
	for {
		wanted := map[[2]string]int{}
		for i, w := range wishes {
			names[i] = w.name()
			wanted[[2]string{w.of, names[i]}]++
		}
		raised := false
		for i, w := range wishes {
			if wanted[[2]string{w.of, names[i]}] > 1 || taken[w.of][names[i]] {
				// Two addresses of one digest do not happen; the bound is for what is the same address.
				if w.digits < mostDigits {
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
