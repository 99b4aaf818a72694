package adopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/contract"
)

// rawStep is a step of a path as a state file has it.
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
		return nil, errors.New("is no list of paths")
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
			return nil, errors.New("the name in a path is no text")
		}
		return cty.GetAttrStep{Name: name}, nil
	case "index":
		var key struct {
			Value json.RawMessage `json:"value"`
			Type  json.RawMessage `json:"type"`
		}
		if err := json.Unmarshal(step.Value, &key); err != nil {
			return nil, errors.New("the key in a path is no value with its type")
		}
		switch string(key.Type) {
		case `"string"`, `"number"`:
			v, err := ctyjson.Unmarshal(step.Value, cty.DynamicPseudoType)
			if err != nil || v.IsNull() {
				return nil, errors.New("the key in a path is neither a text nor a number")
			}
			return cty.IndexStep{Key: v}, nil
		}
		// Elements of sets are keyed by what they are: OpenTofu marks the set instead, so no file has one.
		return nil, errors.New("the key in a path is neither a text nor a number")
	}
	return nil, fmt.Errorf("a step of a path is of type %q, which is neither get_attr nor index", step.Type)
}

// writePaths is what readPaths reads.
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

// isWord tells whether an expression can name an attribute with a dot.
func isWord(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

// pathTexts writes paths, sorted, each once.
func pathTexts(paths []cty.Path) []string {
	var texts []string
	for _, path := range paths {
		texts = append(texts, contract.PathText(path))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// step gives the path one step longer, without touching what others hold of it.
func step(path cty.Path, next cty.PathStep) cty.Path { return append(slices.Clip(path), next) }
