package plugin

import (
	"io"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

const (
	// tailSize is how much of a process's output is retained.
	tailSize = 64 << 10
	// shownOutput is how much of it an error shows.
	shownOutput = 2 << 10
)

// A tail retains the end of the data written to it.
type tail struct {
	tee io.Writer // may be nil

	mu   sync.Mutex
	ring []byte
	next int // where the next byte goes, once the ring is full
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tee != nil {
		// The provider must not notice a failure of the additional writer.
		_, _ = t.tee.Write(b)
	}
	rest := b[max(0, len(b)-tailSize):]
	if room := tailSize - len(t.ring); room > 0 {
		n := min(room, len(rest))
		t.ring = append(t.ring, rest[:n]...)
		rest = rest[n:]
	}
	for len(rest) > 0 {
		n := copy(t.ring[t.next:], rest)
		t.next = (t.next + n) % tailSize
		rest = rest[n:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.ring[t.next:]) + string(t.ring[:t.next])
}

// last returns the output for an error message: from the beginning of a Go panic, or else the end.
func (t *tail) last() string {
	all := strings.TrimSpace(strings.ToValidUTF8(t.String(), "?"))
	for _, marker := range []string{"panic: ", "fatal error: "} {
		if at := strings.Index(all, marker); at >= 0 {
			return strings.ToValidUTF8(all[at:min(len(all), at+shownOutput)], "")
		}
	}
	return strings.ToValidUTF8(all[max(0, len(all)-shownOutput):], "")
}

// A mask removes secrets from a provider's own texts.
type mask struct{ replacer *strings.Replacer }

// minSecretLength is the minimum length of a masked secret. Masking a shorter one would blank half
// of any text, and it would hardly be a secret.
const minSecretLength = 4

func newMask(secrets []string) *mask {
	// Longer secrets first, because one may be the prefix of another.
	sort.Slice(secrets, func(a, b int) bool { return len(secrets[a]) > len(secrets[b]) })
	var pairs []string
	for _, s := range secrets {
		if len(s) >= minSecretLength {
			pairs = append(pairs, s, "(sensitive)")
		}
	}
	return &mask{strings.NewReplacer(pairs...)}
}

func (m *mask) text(s string) string { return m.replacer.Replace(s) }

// secretsOf returns the strings in sensitive attributes of a configuration.
func secretsOf(block *providerapi.Block, config cty.Value) (secrets []string) {
	_ = cty.Walk(config, func(path cty.Path, v cty.Value) (bool, error) {
		if !v.IsKnown() || v.IsNull() || v.Type() != cty.String {
			return true, nil
		}
		if isSecret(block, path) {
			secrets = append(secrets, v.AsString())
		}
		return true, nil
	})
	return secrets
}

// isSecret reports whether an attribute along the path is sensitive.
func isSecret(block *providerapi.Block, path cty.Path) bool {
	return slices.ContainsFunc(attributesAlong(block, path), func(a *providerapi.Attribute) bool { return a.Sensitive || a.WriteOnly })
}
