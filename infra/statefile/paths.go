package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// rawStep is a step of a path in a state file.
type rawStep struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

func readPaths(raw json.RawMessage) ([]cty.Path, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var all [][]rawStep
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, errors.New("not a list of paths")
	}
	var paths []cty.Path
	for _, steps := range all {
		var path cty.Path
		for _, step := range steps {
			next, err := readStep(step)
			if err != nil {
				return nil, err
			}
			path = append(path, next)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func readStep(step rawStep) (cty.PathStep, error) {
	switch step.Type {
	case "get_attr":
		var name string
		if err := json.Unmarshal(step.Value, &name); err != nil {
			return nil, errors.New("the name in a path is not a string")
		}
		return cty.GetAttrStep{Name: name}, nil
	case "index":
		var key struct {
			Value json.RawMessage `json:"value"`
			Type  json.RawMessage `json:"type"`
		}
		if err := json.Unmarshal(step.Value, &key); err != nil {
			return nil, errors.New("the key in a path is not a value with a type")
		}
		switch string(key.Type) {
		case `"string"`, `"number"`:
			v, err := ctyjson.Unmarshal(step.Value, cty.DynamicPseudoType)
			if err != nil || v.IsNull() {
				return nil, errors.New("the key in a path is neither a string nor a number")
			}
			return cty.IndexStep{Key: v}, nil
		}
		// Elements of sets are keyed by their value. No file has such a path, because OpenTofu
		// marks the whole set.
		return nil, errors.New("the key in a path is neither a string nor a number")
	}
	return nil, fmt.Errorf("a step of a path has type %q, which is neither get_attr nor index", step.Type)
}

// writePaths is the inverse of readPaths.
func writePaths(paths []cty.Path) ([][]rawStep, error) {
	var all [][]rawStep
	for _, path := range paths {
		var steps []rawStep
		for _, step := range path {
			var raw rawStep
			var err error
			switch step := step.(type) {
			case cty.GetAttrStep:
				raw.Type = "get_attr"
				raw.Value, err = json.Marshal(step.Name)
			case cty.IndexStep:
				raw.Type = "index"
				raw.Value, err = ctyjson.Marshal(step.Key, cty.DynamicPseudoType)
			}
			if err != nil {
				return nil, err
			}
			steps = append(steps, raw)
		}
		all = append(all, steps)
	}
	return all, nil
}

// isIdentifier reports whether an expression can select an attribute of this name with a dot.
func isIdentifier(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

// pathTexts formats paths, sorted and without duplicates.
func pathTexts(paths []cty.Path) []string {
	var texts []string
	for _, path := range paths {
		texts = append(texts, providerapi.PathText(path))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// appendStep returns the path with one more step, without modifying the original.
func appendStep(path cty.Path, next cty.PathStep) cty.Path { return append(slices.Clip(path), next) }
