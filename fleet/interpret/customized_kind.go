package interpret

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// applyTo applies the customization to the interpretation of its kind. Fields that it does not set
// keep their values.
func (c Customization) applyTo(k KindInfo, answers Answers) KindInfo {
	k.Origin = OriginCustomized + c.Name
	if c.scale != nil {
		k.scale, k.Divided, k.replicas, k.indivisible = c.scale, true, nil, nil
		if c.count != nil {
			k.replicas, k.indivisible = c.replicas, c.uncountable
		}
	}
	if c.template != nil {
		k.template, k.podLabels = c.template, nil
	}
	if c.labels != nil {
		k.podLabels = c.podLabels
	}
	if c.components != nil {
		k.components, k.DefaultMode, k.Divided, k.scale = c.customComponents, Single, false, nil
	}
	k = c.applyWebhook(k, answers)
	if c.needs != nil {
		k.needs, k.Descriptions.Needs = c.customNeeds, "by its ResourceInterpretation"
	}
	if c.follows != nil {
		k.follows, k.Placed, k.Descriptions.Follows = c.customFollows, false, "by its ResourceInterpretation"
	}
	if c.mode != "" {
		k.DefaultMode = c.mode
	}
	if !k.Placed {
		k.DefaultMode = ""
	}
	if len(c.retain) > 0 {
		k.prepare, k.Descriptions.Left = c.retainFields(k.prepare), c.retainText
	}
	if c.health != nil {
		k.health, k.Descriptions.Health = c.customHealth, c.healthText
	}
	if c.finished != nil {
		k.finished = c.customFinished
	}
	if len(c.fields) > 0 {
		k.aggregate, k.Descriptions.Status = c.aggregateFields(k.aggregate), c.statusText
	}
	return k
}

func selfVariable(obj *unstructured.Unstructured) map[string]any {
	return map[string]any{varSelf: obj.Object}
}

func (c Customization) replicas(obj *unstructured.Unstructured) (int32, bool) {
	n, err := c.counted(obj)
	return n, err == nil
}

// uncountable: an object without a valid count cannot be divided.
func (c Customization) uncountable(obj *unstructured.Unstructured) string {
	if _, err := c.counted(obj); err != nil {
		return "cannot count its replicas: " + err.Error()
	}
	return ""
}

func (c Customization) counted(obj *unstructured.Unstructured) (int32, error) {
	value, err := c.count.eval(selfVariable(obj))
	if err != nil {
		return 0, err
	}
	switch n := value.(type) {
	case int64:
		if n >= 0 && n <= 1<<30 {
			return int32(n), nil
		}
	case float64:
		if n >= 0 && n <= 1<<30 && n == float64(int32(n)) {
			return int32(n), nil
		}
	}
	return 0, fmt.Errorf("%s: %v is not a count", c.count.field, value)
}

// podLabels returns nil if the labels cannot be evaluated: then no object attaches to this one.
func (c Customization) podLabels(obj *unstructured.Unstructured) map[string]string {
	value, err := c.labels.eval(selfVariable(obj))
	if err != nil {
		return nil
	}
	found, err := stringMap(value)
	if err != nil {
		return nil
	}
	return found
}

func (c Customization) customNeeds(obj *unstructured.Unstructured, out *refs) error {
	list, err := c.needs.list(obj)
	for i, entry := range list {
		ref, wrong := reference(obj, entry)
		if wrong != nil {
			return fmt.Errorf("%s: entry %d: %w", c.needs.field, i, wrong)
		}
		out.add(ref)
	}
	return err
}

func (c Customization) customFollows(obj *unstructured.Unstructured, out *attachments) error {
	list, err := c.follows.list(obj)
	for i, entry := range list {
		if pods, given := entry["pods"]; given {
			wanted, wrong := stringMap(pods)
			if wrong != nil {
				return fmt.Errorf("%s: entry %d: pods: %w", c.follows.field, i, wrong)
			}
			out.selected(labels.SelectorFromSet(wanted))
			continue
		}
		ref, wrong := reference(obj, entry)
		if wrong != nil {
			return fmt.Errorf("%s: entry %d: %w", c.follows.field, i, wrong)
		}
		out.add(ref)
	}
	return err
}

// list evaluates an expression whose result is a list of maps.
func (e *expression) list(obj *unstructured.Unstructured) ([]map[string]any, error) {
	value, err := e.eval(selfVariable(obj))
	if err != nil {
		return nil, err
	}
	entries, ok := value.([]any)
	if !ok && value != nil {
		return nil, fmt.Errorf("%s: the result is %v, want a list", e.field, value)
	}
	out := make([]map[string]any, 0, len(entries))
	for i, entry := range entries {
		m, ok := entry.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: entry %d: %v is not a map such as {'kind': 'Secret', 'name': 'a'}", e.field, i, entry)
		}
		out = append(out, m)
	}
	return out, nil
}

// reference decodes an entry of needs or follows. An entry without a name, for example from an
// optional field, references nothing.
func reference(obj *unstructured.Unstructured, entry map[string]any) (Reference, error) {
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		_, isText := entry[key].(string)
		switch {
		case !slices.Contains([]string{"apiVersion", "group", "kind", "namespace", "name"}, key):
			return Reference{}, fmt.Errorf("unknown key %q: use apiVersion, group, kind, namespace or name", key)
		case !isText && entry[key] != nil:
			return Reference{}, fmt.Errorf("%s is %v, want a string", key, entry[key])
		}
	}
	ref := refer(text(entry, "group"), text(entry, "kind"), obj.GetNamespace(), text(entry, "name"))
	if version := text(entry, "apiVersion"); version != "" {
		ref.Group = schema.FromAPIVersionAndKind(version, ref.Kind).Group
	}
	if ref.Kind == "" {
		return Reference{}, fmt.Errorf("kind is missing")
	}
	if namespace, given := entry["namespace"].(string); given {
		ref.Namespace = namespace
	} else if k, known := Find(ref.GroupKind); known && k.ClusterScoped {
		ref.Namespace = ""
	}
	return ref, nil
}

func stringMap(value any) (map[string]string, error) {
	m, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v is not a map of labels", value)
	}
	out := map[string]string{}
	for key, v := range m {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("label %s is %v, want a string", key, v)
		}
		out[key] = s
	}
	return out, nil
}

// retainFields omits fields after the previous preparation, so the member retains them.
func (c Customization) retainFields(before func(map[string]any)) func(map[string]any) {
	return func(obj map[string]any) {
		if before != nil {
			before(obj)
		}
		for _, p := range c.retain {
			p.remove(obj)
		}
	}
}

// customHealth: if the health cannot be evaluated, it is Unknown, never Healthy or Degraded.
func (c Customization) customHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	value, err := c.health.eval(selfVariable(obj))
	if err != nil {
		return v1alpha1.Unknown, "cannot evaluate the health: " + err.Error()
	}
	verdict, why := "", ""
	switch v := value.(type) {
	case string:
		verdict = v
	case map[string]any:
		verdict, why = text(v, "health"), text(v, "message")
	}
	switch health := v1alpha1.Health(verdict); health {
	case v1alpha1.Healthy, v1alpha1.Progressing, v1alpha1.Degraded, v1alpha1.Unknown:
		return health, why
	}
	return v1alpha1.Unknown, fmt.Sprintf("cannot evaluate the health: %s: %v is not one of Healthy, Progressing, Degraded, Unknown", c.health.field, value)
}

// customFinished: if the expression cannot be evaluated, the object has not finished.
func (c Customization) customFinished(obj *unstructured.Unstructured) bool {
	value, err := c.finished.eval(selfVariable(obj))
	done, _ := value.(bool)
	return err == nil && done
}
