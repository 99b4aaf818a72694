package statefile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Secret is the content of a Secret that must exist in the object's namespace before the object is
// planned. Printing it does not reveal the values.
type Secret struct {
	Name string
	Data map[string][]byte
	// Missing has the keys without a value: those of write-only arguments, which no state has.
	Missing []string

	texts map[string]string // of the string values
}

// String returns the name without the data.
func (s *Secret) String() string {
	return fmt.Sprintf("Secret %s of %d keys", s.Name, len(s.Data))
}

// GoString returns the same as String.
func (s *Secret) GoString() string { return s.String() }

// MarshalJSON returns an error, so that secrets are only written on purpose.
func (s *Secret) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%s must not be printed; write its Data to a Secret", s)
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

// fill puts the values behind placeholders into the Secret. Placeholders without a value are added
// to Missing.
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

// apply returns the value at a path. Elements of sets are indexed in cty's order, as in
// infra/schema.
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

// secretKey returns the key for a value that is secret by a mark and not by the schema.
func secretKey(path cty.Path) string {
	text := providerapi.PathText(path)
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
