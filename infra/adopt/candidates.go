package adopt

import (
	"crypto/sha256"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// rank says how well an attribute tells one resource from all others. Lower is better.
type rank uint8

const (
	byID rank = iota
	byARN
	byLink
	byName
	byComputed // anything else that the provider made up
	noRank
)

// common is how many resources may have a value before it tells nothing any more.
const common = 8

// A candidate is an attribute of a resource that another's argument may have been taken from.
type candidate struct {
	instance int32
	path     int32 // into candidates.paths
	next     int32 // the next candidate of the same value, or -1
	rank     rank
	// secret says that the attribute is sensitive: so is what refers to it.
	secret bool
}

// candidates are found by a digest of their value: the values themselves, which may be secret, are not kept.
type candidates struct {
	all   []candidate
	heads map[[16]byte]*head
	paths []string
	known map[string]int32
}

type head struct {
	first int32
	count [noRank]uint8
}

func newCandidates() *candidates {
	return &candidates{heads: map[[16]byte]*head{}, known: map[string]int32{}}
}

func digest(text string) (sum [16]byte) {
	whole := sha256.Sum256([]byte(text))
	copy(sum[:], whole[:])
	return sum
}

func (c *candidates) add(instance int32, path, text string, r rank, secret bool) {
	sum := digest(text)
	h := c.heads[sum]
	if h == nil {
		h = &head{first: -1}
		c.heads[sum] = h
	}
	if h.count[r] > common {
		return
	}
	h.count[r]++
	id, ok := c.known[path]
	if !ok {
		id = int32(len(c.paths))
		c.paths = append(c.paths, path)
		c.known[path] = id
	}
	c.all = append(c.all, candidate{instance: instance, path: id, next: h.first, rank: r, secret: secret})
	h.first = int32(len(c.all) - 1)
}

// each gives the candidates of a value. A rank that too many have, and all below it, tell nothing.
func (c *candidates) each(text string, visit func(candidate)) {
	h := c.heads[digest(text)]
	if h == nil {
		return
	}
	limit := noRank
	for r, count := range h.count {
		if count > common {
			limit = rank(r)
			break
		}
	}
	for at := h.first; at >= 0; at = c.all[at].next {
		if c.all[at].rank < limit {
			visit(c.all[at])
		}
	}
}

// A collector goes through what a provider knows of one resource, for what others may refer to.
type collector struct {
	to        *candidates
	instance  int32
	sensitive map[string]bool // texts of paths
}

// collect adds all candidates of a resource.
func (c *candidates) collect(instance int32, kind *served, v cty.Value, sensitive []cty.Path) {
	s := &collector{to: c, instance: instance, sensitive: map[string]bool{}}
	for _, path := range sensitive {
		s.sensitive[contract.PathText(path)] = true
	}
	s.block(&kind.Schema.Block, v, nil, false)
}

func (s *collector) block(b *contract.Block, v cty.Value, path cty.Path, secret bool) {
	if v.IsNull() || !v.Type().IsObjectType() {
		return
	}
	for i := range b.Attributes {
		s.attribute(&b.Attributes[i], v, path, secret)
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		if v.Type().HasAttribute(n.Name) {
			s.each(v.GetAttr(n.Name), attribute(path, n.Name), secret, func(v cty.Value, path cty.Path, secret bool) {
				s.block(&n.Block, v, path, secret)
			})
		}
	}
}

func attribute(path cty.Path, name string) cty.Path { return step(path, cty.GetAttrStep{Name: name}) }

func (s *collector) attribute(a *contract.Attribute, of cty.Value, path cty.Path, secret bool) {
	if a.WriteOnly || !of.Type().HasAttribute(a.Name) {
		return
	}
	v, path := of.GetAttr(a.Name), attribute(path, a.Name)
	secret = secret || a.Sensitive
	if a.Nested == nil {
		s.value(v, path, s.rank(a, path), secret)
		return
	}
	s.each(v, path, secret, func(v cty.Value, path cty.Path, secret bool) {
		if v.IsNull() || !v.Type().IsObjectType() {
			return
		}
		for i := range a.Nested.Attributes {
			s.attribute(&a.Nested.Attributes[i], v, path, secret)
		}
	})
}

// each goes through what there is one of or are several. Elements of a set have no place that lasts.
func (s *collector) each(v cty.Value, path cty.Path, secret bool, one func(cty.Value, cty.Path, bool)) {
	secret = secret || s.marked(path)
	switch ty := v.Type(); {
	case v.IsNull() || ty.IsSetType():
	case ty.IsObjectType():
		one(v, path, secret)
	case v.CanIterateElements():
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			next := step(path, cty.IndexStep{Key: key})
			one(element, next, secret || s.marked(next))
		}
	}
}

func (s *collector) marked(path cty.Path) bool {
	return len(s.sensitive) > 0 && s.sensitive[contract.PathText(path)]
}

// rank says what an attribute is good for. Only what is an identity by its name, or was made up by the provider, is: an
// argument that equals another's argument has more likely been written twice.
func (s *collector) rank(a *contract.Attribute, path cty.Path) rank {
	if len(path) == 1 {
		switch a.Name {
		case "id":
			return byID
		case "arn":
			return byARN
		case "self_link":
			return byLink
		case "name":
			return byName
		}
	}
	if !a.Computed || a.Optional || tellsNothing(a.Name) {
		return noRank
	}
	return byComputed
}

// tellsNothing is of attributes that many resources have with the same value.
func tellsNothing(name string) bool {
	last := name[strings.LastIndexByte(name, '_')+1:]
	switch last {
	case "region", "location", "zone", "status", "state", "type", "version", "engine", "at", "time", "date", "timestamp", "mode", "tier", "class", "etag":
		return true
	}
	return false
}

func (s *collector) value(v cty.Value, path cty.Path, r rank, secret bool) {
	if r == noRank || v.IsNull() {
		return
	}
	secret = secret || s.marked(path)
	switch ty := v.Type(); {
	case ty == cty.String:
		s.offer(path, v.AsString(), r, secret)
	case ty == cty.Number:
		if r == byID {
			s.offer(path, v.AsBigFloat().Text('f', -1), r, secret)
		}
	case ty.IsSetType() || !v.CanIterateElements():
	default:
		// The id of what is within is not the resource's own.
		r = max(r, byComputed)
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			next := cty.PathStep(cty.IndexStep{Key: key})
			if ty.IsObjectType() {
				next = cty.GetAttrStep{Name: key.AsString()}
			}
			s.value(element, step(path, next), r, secret)
		}
	}
}

func (s *collector) offer(path cty.Path, text string, r rank, secret bool) {
	if !telling(text, r) {
		return
	}
	if after, ok := expressionPath(path); ok {
		s.to.add(s.instance, after, text, r, secret)
	}
}

const shortest = 6 // letters of a value that is no accident

// telling tells whether a value can stand for one resource: it is long, and not a word that people use for many things.
func telling(text string, r rank) bool {
	if strings.Contains(text, "${") || len(text) > 4096 {
		return false
	}
	switch strings.ToLower(text) {
	case "default", "enabled", "disabled", "public", "private", "primary", "production", "staging", "development", "internal", "external", "global", "unknown", "active", "available", "standard", "0.0.0.0/0", "0.0.0.0", "127.0.0.1", "localhost":
		return false
	}
	digits, letters, signs := shape(text)
	if len(text) >= shortest {
		return r != byComputed || digits > 0 || signs > 0
	}
	return r == byID && len(text) >= 3 && digits > 0 && letters > 0
}

func shape(text string) (digits, letters, signs int) {
	for i := range len(text) {
		switch c := text[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			letters++
		default:
			signs++
		}
	}
	return digits, letters, signs
}

// expressionPath is what follows TYPE["name"] in an expression. There is none with a key that would need to be escaped.
func expressionPath(path cty.Path) (string, bool) {
	var b strings.Builder
	for _, step := range path {
		var name string
		switch step := step.(type) {
		case cty.GetAttrStep:
			if name = step.Name; isWord(name) {
				b.WriteString("." + name)
				continue
			}
		case cty.IndexStep:
			if step.Key.Type() == cty.Number {
				b.WriteString("[" + step.Key.AsBigFloat().Text('f', -1) + "]")
				continue
			}
			name = step.Key.AsString()
		}
		if name == "" || strconv.Quote(name) != `"`+name+`"` || strings.Contains(name, "${") {
			return "", false
		}
		b.WriteString(`["` + name + `"]`)
	}
	return b.String(), true
}
