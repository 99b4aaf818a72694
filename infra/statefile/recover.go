package statefile

import (
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// maxReferences is how many references are put into one object: infra/expr accepts 1,000 at
// most.
const maxReferences = 500

// A rewriter walks the arguments of one object. It replaces values that were taken from
// dependencies by references, and secret values by references to the Secret.
type rewriter struct {
	survey *survey
	// on has the configurations that the resource depends on.
	on map[int32]bool
	// secret holds the values of sensitive arguments.
	secret *Secret
	// marked has the paths of values that are marked as sensitive although the schema does not say
	// so.
	marked map[string]bool
	// literals disables references.
	literals bool

	// found has the instances that are referred to.
	found map[int32]bool
	count int
}

func (r *rewriter) block(b *providerapi.Block, spec map[string]any, v cty.Value, path cty.Path, inSet bool) {
	for i := range b.Attributes {
		a := &b.Attributes[i]
		if node, ok := spec[a.Name]; ok {
			spec[a.Name] = r.attribute(a, node, field(v, a.Name), attribute(path, a.Name), inSet)
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		if node, ok := spec[n.Name]; ok {
			spec[n.Name] = r.nested(n.Nesting, node, field(v, n.Name), attribute(path, n.Name), inSet, func(node any, v cty.Value, path cty.Path, inSet bool) any {
				if fields, ok := node.(map[string]any); ok {
					r.block(&n.Block, fields, v, path, inSet)
				}
				return node
			})
		}
	}
}

// field returns an attribute of an object, or NilVal.
func field(v cty.Value, name string) cty.Value {
	if v == cty.NilVal || v.IsNull() || !v.Type().IsObjectType() || !v.Type().HasAttribute(name) {
		return cty.NilVal
	}
	return v.GetAttr(name)
}

func (r *rewriter) attribute(a *providerapi.Attribute, node any, v cty.Value, path cty.Path, inSet bool) any {
	switch {
	case a.Sensitive || a.WriteOnly:
		return r.sensitive(node, path)
	case a.Nested != nil:
		return r.nested(a.Nested.Nesting, node, v, path, inSet, func(node any, v cty.Value, path cty.Path, inSet bool) any {
			fields, ok := node.(map[string]any)
			for i := range a.Nested.Attributes {
				inner := &a.Nested.Attributes[i]
				if node, there := fields[inner.Name]; ok && there {
					fields[inner.Name] = r.attribute(inner, node, field(v, inner.Name), attribute(path, inner.Name), inSet)
				}
			}
			return node
		})
	}
	return r.value(node, v, path, inSet)
}

// nested walks a nested block or attribute. A block with at most one element is not a list in the
// spec, but its path has an index all the same. InSet is true within sets, whose elements have no
// path.
func (r *rewriter) nested(nesting providerapi.Nesting, node any, v cty.Value, path cty.Path, inSet bool, one func(any, cty.Value, cty.Path, bool) any) any {
	if r.isMarked(path, inSet) {
		return r.moveToSecret(v, path)
	}
	switch nesting {
	case providerapi.NestingSingle, providerapi.NestingGroup:
		return one(node, v, path, inSet)
	case providerapi.NestingSet:
		inSet = true
	}
	return r.elements(node, v, path, inSet, nesting == providerapi.NestingMap, one)
}

func (r *rewriter) elements(node any, v cty.Value, path cty.Path, inSet, keyed bool, one func(any, cty.Value, cty.Path, bool) any) any {
	switch node := node.(type) {
	case []any:
		for i, item := range node {
			key := cty.NumberIntVal(int64(i))
			node[i] = one(item, element(v, key, inSet), appendStep(path, cty.IndexStep{Key: key}), inSet)
		}
	case map[string]any:
		if !keyed {
			key := cty.NumberIntVal(0)
			return one(node, element(v, key, inSet), appendStep(path, cty.IndexStep{Key: key}), inSet)
		}
		for name, item := range node {
			key := cty.StringVal(name)
			node[name] = one(item, element(v, key, inSet), appendStep(path, cty.IndexStep{Key: key}), inSet)
		}
	}
	return node
}

// element returns an element of a list or a map, or NilVal.
func element(v, key cty.Value, inSet bool) cty.Value {
	if v == cty.NilVal || v.IsNull() || inSet || !v.CanIterateElements() || v.Type().IsSetType() {
		return cty.NilVal
	}
	if v.Type().IsObjectType() {
		if key.Type() != cty.String {
			return cty.NilVal
		}
		return field(v, key.AsString())
	}
	if !v.HasIndex(key).True() {
		return cty.NilVal
	}
	return v.Index(key)
}

// value walks a value without a nested schema.
func (r *rewriter) value(node any, v cty.Value, path cty.Path, inSet bool) any {
	if r.isMarked(path, inSet) {
		return r.moveToSecret(v, path)
	}
	switch node := node.(type) {
	case string:
		if expression := r.findReference(node, path, false); expression != "" {
			return expression
		}
	case int64:
		// Some providers have an ID as a number in one place and as a string in another.
		if text := strconv.FormatInt(node, 10); len(text) >= minLength {
			if expression := r.findReference(text, path, false, byID); expression != "" {
				return expression
			}
		}
	case []any:
		if v != cty.NilVal && v.Type().IsSetType() {
			inSet = true
		}
		return r.elements(node, v, path, inSet, false, r.value)
	case map[string]any:
		if v != cty.NilVal && v.Type().IsObjectType() {
			for name, item := range node {
				node[name] = r.value(item, field(v, name), attribute(path, name), inSet)
			}
			return node
		}
		return r.elements(node, v, path, inSet, true, r.value)
	}
	return node
}

func (r *rewriter) isMarked(path cty.Path, inSet bool) bool {
	return !inSet && len(r.marked) > 0 && r.marked[providerapi.PathText(path)]
}

// moveToSecret replaces a value that is marked as sensitive, by a reference to its origin or else
// by one to the Secret. As the schema does not call it sensitive, the argument accepts no
// secretKeyRef. An expression keeps it sensitive.
func (r *rewriter) moveToSecret(v cty.Value, path cty.Path) any {
	if v == cty.NilVal || v.IsNull() {
		return nil
	}
	if v.Type() == cty.String {
		if expression := r.findReference(v.AsString(), path, true); expression != "" {
			return expression
		}
	}
	key := secretKey(path)
	r.secret.put(key, v)
	// With its version, because a provider may have a type of the name secret.
	expression := `base64decode(k8s["v1"].Secret["` + r.secret.Name + `"].data["` + key + `"])`
	if v.Type() != cty.String {
		expression = "jsondecode(" + expression + ")"
	}
	return "${" + expression + "}"
}

// sensitive looks for the origin of a sensitive argument. If there is one, the Secret does not need
// the value.
func (r *rewriter) sensitive(node any, path cty.Path) any {
	key, ok := placeholderKey(node)
	if !ok {
		return node
	}
	text, ok := r.secret.texts[key]
	if !ok {
		return node
	}
	expression := r.findReference(text, path, true)
	if expression == "" {
		expression = r.findReference(text, path, false)
	}
	if expression == "" {
		return node
	}
	r.secret.drop(key)
	return expression
}

func placeholderKey(node any) (string, bool) {
	outer, _ := node.(map[string]any)
	inner, _ := outer["secretKeyRef"].(map[string]any)
	key, ok := inner["key"].(string)
	return key, ok
}

// findReference returns an expression for the one attribute that a value was taken from, or "" if
// there is none or it is ambiguous. A secret value may only refer to a secret attribute, and the
// other way round. Only restricts the ranks.
func (r *rewriter) findReference(text string, path cty.Path, secret bool, only ...rank) string {
	if r.literals || r.count >= maxReferences || strings.Contains(text, "${") || len(r.on) == 0 {
		return ""
	}
	var best []candidate
	r.survey.candidates.each(text, func(c candidate) {
		if c.secret != secret || len(only) > 0 && !slices.Contains(only, c.rank) || !r.on[r.survey.instances[c.instance].config] {
			return
		}
		switch {
		case len(best) > 0 && c.rank > best[0].rank:
		case len(best) > 0 && c.rank == best[0].rank:
			best = append(best, c)
		default:
			best = append(best[:0], c)
		}
	})
	if len(best) == 0 {
		return ""
	}
	if len(best) > 1 || best[0].rank == byName && (isPlainWord(text) || len(text) < minLength) {
		best = slices.DeleteFunc(best, func(c candidate) bool { return !matchesType(path, r.survey.instances[c.instance]) })
	}
	if len(best) != 1 {
		return ""
	}
	of := r.survey.instances[best[0].instance]
	if !isIdentifier(of.typ.typeName) {
		return ""
	}
	r.found[best[0].instance] = true
	r.count++
	head := of.typ.typeName
	if of.typ.data {
		head = "data." + head
	}
	return "${" + head + `["` + of.name + `"]` + r.survey.candidates.paths[best[0].path] + "}"
}

func isPlainWord(text string) bool {
	digits, _, signs := shape(text)
	return digits == 0 && signs == 0
}

// matchesType reports whether an argument's name matches the type that it may refer to, for example
// role, role_name or role_ids and aws_iam_role, or config_map_ref[0].name and kubernetes_config_map_v1.
func matchesType(path cty.Path, of *resourceInstance) bool {
	var name, around string
	for _, step := range path {
		if attribute, ok := step.(cty.GetAttrStep); ok {
			around, name = name, attribute.Name
		}
	}
	if name == "name" || name == "id" || name == "arn" {
		for _, end := range []string{"_key_ref", "_ref", "_reference"} {
			around = strings.TrimSuffix(around, end)
		}
		name = around
	}
	typeName := unversioned(of.typ.typeName)
	for _, end := range []string{"_id", "_ids", "_arn", "_arns", "_name", "_names", "_link", "_self_link"} {
		if short, ok := strings.CutSuffix(name, end); ok {
			name = short
			break
		}
	}
	name = strings.TrimSuffix(name, "s")
	return len(name) >= 2 && (typeName == name || strings.HasSuffix(typeName, "_"+name))
}
