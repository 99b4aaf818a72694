package decide

import (
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// step returns the path with one more step. It does not change the array that path shares.
func step(path cty.Path, next cty.PathStep) cty.Path {
	return append(slices.Clip(path), next)
}

func attributeStep(path cty.Path, name string) cty.Path {
	return step(path, cty.GetAttrStep{Name: name})
}

func indexStep(path cty.Path, key cty.Value) cty.Path {
	return step(path, cty.IndexStep{Key: key})
}

// attributeAt returns the schema's attribute at the path. It returns nil for a block, and for a
// part of an attribute that has no schema of its own.
func attributeAt(block *providerapi.Block, path cty.Path) *providerapi.Attribute {
	attributes, blocks := block.Attributes, block.Blocks
	for i, s := range path {
		name, ok := s.(cty.GetAttrStep)
		if !ok {
			continue
		}
		here := providerapi.Block{Attributes: attributes, Blocks: blocks}
		if a := here.Attribute(name.Name); a != nil {
			if i == len(path)-1 {
				return a
			}
			if a.Nested == nil {
				return nil
			}
			attributes, blocks = a.Nested.Attributes, nil
			continue
		}
		nested := here.Nested(name.Name)
		if nested == nil {
			return nil
		}
		attributes, blocks = nested.Block.Attributes, nested.Block.Blocks
	}
	return nil
}

// sensitiveBySchema reports whether the schema declares the value at the path, or one around it,
// sensitive.
func sensitiveBySchema(block *providerapi.Block, path cty.Path) bool {
	for i := range path {
		if a := attributeAt(block, path[:i+1]); a != nil && (a.Sensitive || a.WriteOnly) {
			return true
		}
	}
	return false
}

// below reports whether path is prefix or within prefix.
func below(path, prefix cty.Path) bool {
	return len(path) >= len(prefix) && path[:len(prefix)].Equals(prefix)
}

// hasPath reports whether paths contains path.
func hasPath(paths []cty.Path, path cty.Path) bool {
	return slices.ContainsFunc(paths, path.Equals)
}

// withoutMarks removes the marks of a value and returns their paths. Elements of a set cannot be
// marked; the set is marked instead.
func withoutMarks(block *providerapi.Block, v cty.Value) (cty.Value, []cty.Path) {
	if !anyMarked(block, v) {
		return v, nil
	}
	v, marks := v.UnmarkDeepWithPaths()
	paths := make([]cty.Path, 0, len(marks))
	for _, m := range marks {
		if !hasPath(paths, m.Path) {
			paths = append(paths, m.Path)
		}
	}
	slices.SortFunc(paths, func(a, b cty.Path) int { return strings.Compare(providerapi.PathText(a), providerapi.PathText(b)) })
	return v, paths
}

// anyMarked reports whether a value of the block's type has marks. Unlike ContainsMarked, it skips
// null values and builds no paths.
func anyMarked(block *providerapi.Block, v cty.Value) bool {
	switch {
	case v.IsMarked():
		return true
	case v.IsNull() || !v.IsKnown():
		return false
	}
	within := func(name string) bool {
		of := v.GetAttr(name)
		return of.IsMarked() || !of.IsNull() && !of.Type().IsPrimitiveType() && of.ContainsMarked()
	}
	for i := range block.Attributes {
		if within(block.Attributes[i].Name) {
			return true
		}
	}
	for i := range block.Blocks {
		if within(block.Blocks[i].Name) {
			return true
		}
	}
	return false
}
