package override

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// patchText patches the JSON or YAML in the text of a field.
func patchText(obj *unstructured.Unstructured, t v1alpha1.TextOverride) error {
	parent, key, err := find(obj.Object, t.Path)
	if err != nil {
		return err
	}
	text, ok := parent[key].(string)
	if !ok {
		return errors.New("the object has no text there: correct the path, or select other objects")
	}
	encoded := obj.GroupVersionKind().GroupKind().String() == "Secret" && strings.HasPrefix(t.Path, "/data/")
	if encoded {
		plain, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return errors.New("the text is not base64")
		}
		text = string(plain)
	}
	ops := make([]operation, 0, len(t.JSONPatch))
	for _, o := range t.JSONPatch {
		ops = append(ops, operation(o))
	}
	if text, err = patchContent(text, ops); err != nil {
		return err
	}
	if encoded {
		text = base64.StdEncoding.EncodeToString([]byte(text))
	}
	parent[key] = text
	return nil
}

// find returns the map that has the field of a path, and its key there.
func find(object map[string]any, path string) (parent map[string]any, key string, err error) {
	keys := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i := range keys {
		keys[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(keys[i])
	}
	for _, key := range keys[:len(keys)-1] {
		child, ok := object[key].(map[string]any)
		if !ok {
			return nil, "", fmt.Errorf("the object has no field %s there; use jsonPatch for elements of lists", key)
		}
		object = child
	}
	return object, keys[len(keys)-1], nil
}

// patchContent patches JSON, which stays JSON, or YAML. Errors do not contain any of it: it may be secret.
func patchContent(text string, ops []operation) (string, error) {
	document, isJSON := []byte(text), json.Valid([]byte(text))
	if !isJSON {
		var err error
		if document, err = yaml.YAMLToJSONStrict([]byte(text)); err != nil || string(document) == "null" || strings.Contains("\n"+text, "\n---\n") && strings.Contains(strings.TrimPrefix(text, "---\n"), "\n---\n") {
			return "", errors.New("the text is neither JSON nor one document of YAML")
		}
	}
	out, err := apply(document, ops)
	if err != nil {
		return "", errors.New("jsonPatch does not match the text: check that its paths exist; a path with /- appends to a list, and ~1 stands for / in a key")
	}
	if isJSON {
		return string(out), nil
	}
	if out, err = yaml.JSONToYAML(out); err != nil {
		return "", errors.New("the result of jsonPatch cannot be written as YAML")
	}
	return string(out), nil
}
