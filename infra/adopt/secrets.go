package adopt

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Secret is what has to be in a Secret of the object's namespace, before the object is planned. It shows nothing of it when it is
// printed.
type Secret struct {
	Name string
	Data map[string][]byte
	// Missing are keys of which nobody has kept the value: of arguments that are only ever written.
	Missing []string

	texts map[string]string // of those whose value is a string
}

// String names the keys alone.
func (s *Secret) String() string {
	return fmt.Sprintf("Secret %s of %d keys", s.Name, len(s.Data))
}

// GoString is String.
func (s *Secret) GoString() string { return s.String() }

// MarshalJSON refuses: whoever wants to write it out has to say so.
func (s *Secret) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%s is not written along with what is shown: write its Data into a Secret", s)
}

func (s *Secret) put(key string, v cty.Value) {
	if v.Type() == cty.String {
		s.Data[key] = []byte(v.AsString())
		s.texts[key] = v.AsString()
		return
	}
	if text, err := ctyjson.Marshal(v, v.Type()); err == nil {
		s.Data[key] = text
	}
}

func (s *Secret) drop(key string) {
	delete(s.Data, key)
	delete(s.texts, key)
}

// fill puts the values behind placeholders into the Secret. Those that there are not are missing.
func (s *Secret) fill(placeholders []Placeholder, v cty.Value) {
	for _, p := range placeholders {
		at, ok := apply(p.Path, v)
		if !ok || at.IsNull() {
			s.Missing = append(s.Missing, p.Key)
			continue
		}
		s.put(p.Key, at)
	}
}

// apply finds what is at a path. Elements of sets are counted in cty's order, as infra/schema does.
func apply(path cty.Path, v cty.Value) (cty.Value, bool) {
	for _, next := range path {
		if v == cty.NilVal || v.IsNull() || !v.IsKnown() {
			return cty.NilVal, false
		}
		switch next := next.(type) {
		case cty.GetAttrStep:
			if v = field(v, next.Name); v == cty.NilVal {
				return v, false
			}
		case cty.IndexStep:
			if v.Type().IsSetType() {
				at, _ := next.Key.AsBigFloat().Int64()
				all := v.AsValueSlice()
				if at < 0 || at >= int64(len(all)) {
					return cty.NilVal, false
				}
				v = all[at]
				continue
			}
			if v = element(v, next.Key, false); v == cty.NilVal {
				return v, false
			}
		}
	}
	return v, true
}

// secretKey is the key for a value that only a mark says is secret.
func secretKey(path cty.Path) string {
	text := contract.PathText(path)
	key := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, text)
	if key == text && len(key) <= 200 {
		return key
	}
	sum := sha256.Sum256([]byte(text))
	return key[:min(len(key), 200)] + "-" + hex.EncodeToString(sum[:4])
}
