package adopt

import (
	"slices"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// mostExpressions is how many references are put into one object: infra/reference takes 1,000 at most.
const mostExpressions = 500

// A rewriter goes through the arguments of one object, and puts references in the place of values that were taken from
// what the resource depends on, and Secrets in the place of what is secret.
type rewriter struct {
	survey *survey
	// on are the configurations that the resource depends on.
	on map[int32]bool
	// placeholders are the values behind keys of the Secret, for arguments that are sensitive.
	secret *Secret
	// marked are texts of the paths that were secret although no schema says so.
	marked map[string]bool
	// literals turns references off.
	literals bool

	// found are the instances that are referred to.
	found map[int32]bool
	count int
}

func (r *rewriter) block(b *contract.Block, spec map[string]any, v cty.Value, path cty.Path, within bool) {
	for i := range b.Attributes {
		a := &b.Attributes[i]
		if node, ok := spec[a.Name]; ok {
			spec[a.Name] = r.attribute(a, node, field(v, a.Name), attribute(path, a.Name), within)
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		if node, ok := spec[n.Name]; ok {
			spec[n.Name] = r.nested(n.Nesting, node, field(v, n.Name), attribute(path, n.Name), within, func(node any, v cty.Value, path cty.Path, within bool) any {
				if fields, ok := node.(map[string]any); ok {
					r.block(&n.Block, fields, v, path, within)
				}
				return node
			})
		}
	}
}

// field is an attribute of an object, or nothing if there is none.
func field(v cty.Value, name string) cty.Value {
	if v == cty.NilVal || v.IsNull() || !v.Type().IsObjectType() || !v.Type().HasAttribute(name) {
		return cty.NilVal
	}
	return v.GetAttr(name)
}

func (r *rewriter) attribute(a *contract.Attribute, node any, v cty.Value, path cty.Path, within bool) any {
	switch {
	case a.Sensitive || a.WriteOnly:
		return r.sensitive(node, path)
	case a.Nested != nil:
		return r.nested(a.Nested.Nesting, node, v, path, within, func(node any, v cty.Value, path cty.Path, within bool) any {
			fields, ok := node.(map[string]any)
			for i := range a.Nested.Attributes {
				inner := &a.Nested.Attributes[i]
				if node, there := fields[inner.Name]; ok && there {
					fields[inner.Name] = r.attribute(inner, node, field(v, inner.Name), attribute(path, inner.Name), within)
				}
			}
			return node
		})
	}
	return r.value(node, v, path, within)
}

// nested goes through what there is one of or are several. A block that can be there once stands alone, and
// has a place in a list all the same. Within is of what is in a set, where nothing has a place.
func (r *rewriter) nested(nesting contract.Nesting, node any, v cty.Value, path cty.Path, within bool, one func(any, cty.Value, cty.Path, bool) any) any {
	if r.isMarked(path, within) {
		return r.hide(v, path)
	}
	switch nesting {
	case contract.NestingSingle, contract.NestingGroup:
		return one(node, v, path, within)
	case contract.NestingSet:
		within = true
	}
	return r.elements(node, v, path, within, nesting == contract.NestingMap, one)
}

func (r *rewriter) elements(node any, v cty.Value, path cty.Path, within, keyed bool, one func(any, cty.Value, cty.Path, bool) any) any {
	switch node := node.(type) {
	case []any:
		for i, item := range node {
			key := cty.NumberIntVal(int64(i))
			node[i] = one(item, element(v, key, within), step(path, cty.IndexStep{Key: key}), within)
		}
	case map[string]any:
		if !keyed {
			key := cty.NumberIntVal(0)
			return one(node, element(v, key, within), step(path, cty.IndexStep{Key: key}), within)
		}
		for name, item := range node {
			key := cty.StringVal(name)
			node[name] = one(item, element(v, key, within), step(path, cty.IndexStep{Key: key}), within)
		}
	}
	return node
}

// element is one of a list or a map, or nothing if there is none.
func element(v, key cty.Value, within bool) cty.Value {
	if v == cty.NilVal || v.IsNull() || within || !v.CanIterateElements() || v.Type().IsSetType() {
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

// value goes through a value of which no schema says more than its type.
func (r *rewriter) value(node any, v cty.Value, path cty.Path, within bool) any {
	if r.isMarked(path, within) {
		return r.hide(v, path)
	}
	switch node := node.(type) {
	case string:
		if expression := r.refer(node, path, false); expression != "" {
			return expression
		}
	case int64:
		// Some providers have numbers for IDs in one place, and text in another.
		if text := strconv.FormatInt(node, 10); len(text) >= shortest {
			if expression := r.refer(text, path, false, byID); expression != "" {
				return expression
			}
		}
	case []any:
		if v != cty.NilVal && v.Type().IsSetType() {
			within = true
		}
		return r.elements(node, v, path, within, false, r.value)
	case map[string]any:
		if v != cty.NilVal && v.Type().IsObjectType() {
			for name, item := range node {
				node[name] = r.value(item, field(v, name), attribute(path, name), within)
			}
			return node
		}
		return r.elements(node, v, path, within, true, r.value)
	}
	return node
}

func (r *rewriter) isMarked(path cty.Path, within bool) bool {
	return !within && len(r.marked) > 0 && r.marked[contract.PathText(path)]
}

// hide puts something secret into the Secret, unless a reference says where it came from. No schema says that it is
// sensitive, so the argument takes no secretKeyRef: but an expression, which keeps the secret a secret.
func (r *rewriter) hide(v cty.Value, path cty.Path) any {
	if v == cty.NilVal || v.IsNull() {
		return nil
	}
	if v.Type() == cty.String {
		if expression := r.refer(v.AsString(), path, true); expression != "" {
			return expression
		}
	}
	key := secretKey(path)
	r.secret.put(key, v)
	// With its version: a provider may have a type secret, too.
	expression := `base64decode(k8s["v1"].Secret["` + r.secret.Name + `"].data["` + key + `"])`
	if v.Type() != cty.String {
		expression = "jsondecode(" + expression + ")"
	}
	return "${" + expression + "}"
}

// sensitive looks for what an argument that is sensitive was taken from; then no Secret is needed.
func (r *rewriter) sensitive(node any, path cty.Path) any {
	key, ok := placeholderKey(node)
	if !ok {
		return node
	}
	text, ok := r.secret.texts[key]
	if !ok {
		return node
	}
	expression := r.refer(text, path, true)
	if expression == "" {
		expression = r.refer(text, path, false)
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

// refer gives the expression of the one attribute that a value was taken from, or "" if there is none, or no way to tell
// which. Secret is of a value that has to stay secret; one that is not must not become it. Only narrows it to those ranks.
func (r *rewriter) refer(text string, path cty.Path, secret bool, only ...rank) string {
	if r.literals || r.count >= mostExpressions || strings.Contains(text, "${") || len(r.on) == 0 {
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
	if len(best) > 1 || best[0].rank == byName && isPlainWord(text) {
		best = slices.DeleteFunc(best, func(c candidate) bool { return !kin(path, r.survey.instances[c.instance]) })
	}
	if len(best) != 1 {
		return ""
	}
	of := r.survey.instances[best[0].instance]
	if !isWord(of.kind.typeName) {
		return ""
	}
	r.found[best[0].instance] = true
	r.count++
	head := of.kind.typeName
	if of.kind.data {
		head = "data." + head
	}
	return "${" + head + `["` + of.name + `"]` + r.survey.candidates.paths[best[0].path] + "}"
}

func isPlainWord(text string) bool {
	digits, _, signs := shape(text)
	return digits == 0 && signs == 0
}

// kin tells whether an argument is called like the type that it may refer to: role, role_name or role_ids, and aws_iam_role.
func kin(path cty.Path, of *known) bool {
	var name string
	for _, step := range path {
		if attribute, ok := step.(cty.GetAttrStep); ok {
			name = attribute.Name
		}
	}
	for _, end := range []string{"_id", "_ids", "_arn", "_arns", "_name", "_names", "_link", "_self_link"} {
		if short, ok := strings.CutSuffix(name, end); ok {
			name = short
			break
		}
	}
	name = strings.TrimSuffix(name, "s")
	return len(name) >= 2 && (of.kind.typeName == name || strings.HasSuffix(of.kind.typeName, "_"+name))
}
