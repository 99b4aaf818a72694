package statefile

import (
	"crypto/sha256"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// rank is how well an attribute identifies a resource. Lower is better.
type rank uint8

const (
	byID rank = iota
	byARN
	byLink
	byName
	byComputed // anything else that the provider computed
	noRank
)

// maxShared is how many resources may have a value before it identifies none of them.
const maxShared = 8

// A candidate is an attribute that another resource's argument may have been taken from.
type candidate struct {
	instance int32
	path     int32 // into candidates.paths
	next     int32 // the next candidate with the same value, or -1
	rank     rank
	// secret marks a sensitive attribute. References to it are sensitive as well.
	secret bool
}

// candidates indexes attributes by a digest of their value. It does not store the values, which may
// be secret.
type candidates struct {
	all     []candidate
	heads   map[[16]byte]*head
	paths   []string
	pathIDs map[string]int32
}

type head struct {
	first int32
	count [noRank]uint8
}

func newCandidates() *candidates {
	return &candidates{heads: map[[16]byte]*head{}, pathIDs: map[string]int32{}}
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
	if h.count[r] > maxShared {
		return
	}
	h.count[r]++
	id, ok := c.pathIDs[path]
	if !ok {
		id = int32(len(c.paths))
		c.paths = append(c.paths, path)
		c.pathIDs[path] = id
	}
	c.all = append(c.all, candidate{instance: instance, path: id, next: h.first, rank: r, secret: secret})
	h.first = int32(len(c.all) - 1)
}

// each visits the candidates for a value. If too many resources have the value at some rank, that
// rank and all higher ones are skipped.
func (c *candidates) each(text string, visit func(candidate)) {
	h := c.heads[digest(text)]
	if h == nil {
		return
	}
	limit := noRank
	for r, count := range h.count {
		if count > maxShared {
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

// A collector walks the value of one resource for attributes that others may refer to.
type collector struct {
	to        *candidates
	instance  int32
	typeName  string
	sensitive map[string]bool // texts of paths
}

// collect adds all candidates of a resource.
func (c *candidates) collect(instance int32, typ *typeInfo, v cty.Value, sensitive []cty.Path) {
	s := &collector{to: c, instance: instance, typeName: unversioned(typ.typeName), sensitive: map[string]bool{}}
	for _, path := range sensitive {
		s.sensitive[providerapi.PathText(path)] = true
	}
	s.block(&typ.Schema.Block, v, nil, false)
}

func (s *collector) block(b *providerapi.Block, v cty.Value, path cty.Path, secret bool) {
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

func attribute(path cty.Path, name string) cty.Path {
	return appendStep(path, cty.GetAttrStep{Name: name})
}

func (s *collector) attribute(a *providerapi.Attribute, of cty.Value, path cty.Path, secret bool) {
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

// each visits the elements of a nested block or attribute. Elements of sets have no stable path and
// are skipped.
func (s *collector) each(v cty.Value, path cty.Path, secret bool, one func(cty.Value, cty.Path, bool)) {
	secret = secret || s.marked(path)
	switch ty := v.Type(); {
	case v.IsNull() || ty.IsSetType():
	case ty.IsObjectType():
		one(v, path, secret)
	case v.CanIterateElements():
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			next := appendStep(path, cty.IndexStep{Key: key})
			one(element, next, secret || s.marked(next))
		}
	}
}

func (s *collector) marked(path cty.Path) bool {
	return len(s.sensitive) > 0 && s.sensitive[providerapi.PathText(path)]
}

// rank returns the rank of an attribute. Only attributes that are an identity by name, or that the
// provider computed, have one. Two equal arguments are more likely to have been written twice.
func (s *collector) rank(a *providerapi.Attribute, path cty.Path) rank {
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
		if isOwnName(a.Name, s.typeName) {
			return byName
		}
	}
	// Providers of Kubernetes have names of objects in metadata[0].name.
	if head, ok := path[0].(cty.GetAttrStep); ok && len(path) <= 3 && head.Name == "metadata" && a.Name == "name" {
		return byName
	}
	if !a.Computed || a.Optional || isShared(a.Name) {
		return noRank
	}
	return byComputed
}

// isOwnName reports whether an attribute is the name of its resource: bucket or bucket_name of
// aws_s3_bucket.
func isOwnName(attribute, typeName string) bool {
	short := strings.TrimSuffix(attribute, "_name")
	return len(short) >= 2 && strings.HasSuffix(typeName, "_"+short)
}

// unversioned returns the name of a type without the version that providers append to successors:
// kubernetes_namespace of kubernetes_namespace_v1.
func unversioned(typeName string) string {
	at := strings.LastIndex(typeName, "_v")
	if at < 0 || at+2 == len(typeName) || strings.Trim(typeName[at+2:], "0123456789") != "" {
		return typeName
	}
	return typeName[:at]
}

// isShared reports whether many resources have the same value in an attribute of this name.
func isShared(name string) bool {
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
		// A nested ID is not the resource's own.
		r = max(r, byComputed)
		for it := v.ElementIterator(); it.Next(); {
			key, element := it.Element()
			next := cty.PathStep(cty.IndexStep{Key: key})
			if ty.IsObjectType() {
				next = cty.GetAttrStep{Name: key.AsString()}
			}
			s.value(element, appendStep(path, next), r, secret)
		}
	}
}

func (s *collector) offer(path cty.Path, text string, r rank, secret bool) {
	if !isDistinctive(text, r) {
		return
	}
	if after, ok := expressionPath(path); ok {
		s.to.add(s.instance, after, text, r, secret)
	}
}

const minLength = 6 // minimum length of a value that is not equal by accident

// isDistinctive reports whether a value can identify one resource: it is long enough, and not a
// common word.
func isDistinctive(text string, r rank) bool {
	if strings.Contains(text, "${") || len(text) > 4096 {
		return false
	}
	if r == byName {
		return len(text) >= 2 // findReference also wants an argument that is named like the type
	}
	switch strings.ToLower(text) {
	case "default", "enabled", "disabled", "public", "private", "primary", "production", "staging", "development", "internal", "external", "global", "unknown", "active", "available", "standard", "0.0.0.0/0", "0.0.0.0", "127.0.0.1", "localhost":
		return false
	}
	digits, letters, signs := shape(text)
	if len(text) >= minLength {
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

// expressionPath returns the part of an expression after TYPE["name"]. Keys that need escaping are
// not supported.
func expressionPath(path cty.Path) (string, bool) {
	var b strings.Builder
	for _, step := range path {
		var name string
		switch step := step.(type) {
		case cty.GetAttrStep:
			if name = step.Name; isIdentifier(name) {
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
