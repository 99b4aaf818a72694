package provider

import (
	"io"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

const (
	// keptOutput is how much of what a process wrote last is kept.
	keptOutput = 64 << 10
	// toldOutput is how much of it an error shows.
	toldOutput = 2 << 10
)

// A tail keeps the last that was written to it, however much that is.
type tail struct {
	also io.Writer // may be nil

	mu   sync.Mutex
	ring []byte
	next int // where the next byte goes, once the ring is full
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		// Whoever asked to see it may fail to; the provider does not care.
		_, _ = t.also.Write(b)
	}
	rest := b[max(0, len(b)-keptOutput):]
	if room := keptOutput - len(t.ring); room > 0 {
		n := min(room, len(rest))
		t.ring = append(t.ring, rest[:n]...)
		rest = rest[n:]
	}
	for len(rest) > 0 {
		n := copy(t.ring[t.next:], rest)
		t.next = (t.next + n) % keptOutput
		rest = rest[n:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.ring[t.next:]) + string(t.ring[:t.next])
}

// last is what an error tells of it: from where a Go program says that it dies, or
// else the end.
func (t *tail) last() string {
	all := strings.TrimSpace(strings.ToValidUTF8(t.String(), "?"))
	for _, cry := range []string{"panic: ", "fatal error: "} {
		if at := strings.Index(all, cry); at >= 0 {
			return strings.ToValidUTF8(all[at:min(len(all), at+toldOutput)], "")
		}
	}
	return strings.ToValidUTF8(all[max(0, len(all)-toldOutput):], "")
}

// A mask takes secrets out of what a provider says in its own words.
type mask struct{ replacer *strings.Replacer }

// maskedFrom is how long a secret has to be. A shorter one would blot out half of
// any text, and be no secret.
const maskedFrom = 4

func newMask(secrets []string) *mask {
	// Where one begins another the longer has to go first.
	sort.Slice(secrets, func(a, b int) bool { return len(secrets[a]) > len(secrets[b]) })
	var pairs []string
	for _, s := range secrets {
		if len(s) >= maskedFrom {
			pairs = append(pairs, s, "(sensitive)")
		}
	}
	return &mask{strings.NewReplacer(pairs...)}
}

func (m *mask) text(s string) string { return m.replacer.Replace(s) }

// secretsOf lists the strings in sensitive attributes of a configuration.
func secretsOf(block *contract.Block, config cty.Value) (secrets []string) {
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

// isSecret tells whether one of the attributes along the path is sensitive.
func isSecret(block *contract.Block, path cty.Path) bool {
	return slices.ContainsFunc(attributesAlong(block, path), func(a *contract.Attribute) bool { return a.Sensitive || a.WriteOnly })
}
