package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// secretName is the name of the Secret that holds all sensitive values of a namespace.
const secretName = "values"

// Objects returns a configuration as API objects, by address, and the data of the Secret that they refer to.
func Objects(s *Step, ids func(address string) string) (map[Address]map[string]any, map[string]string) {
	secrets := map[string]string{}
	out := map[Address]map[string]any{}
	for _, r := range s.Configuration.Resources {
		w := &objectWriter{key: r.Name, secrets: secrets}
		spec := w.value(r.Arguments).(map[string]any)
		l := map[string]any{}
		if r.Lifecycle.CreateBeforeDestroy {
			l["create_before_destroy"] = true
		}
		if r.Lifecycle.PreventDestroy {
			l["prevent_destroy"] = true
		}
		if len(r.Lifecycle.IgnoreChanges) > 0 {
			l["ignore_changes"] = anyList(r.Lifecycle.IgnoreChanges)
		}
		var triggers []string
		for _, ref := range r.Lifecycle.ReplaceTriggeredBy {
			triggers = append(triggers, celRef(ref))
		}
		if len(triggers) > 0 {
			l["replace_triggered_by"] = anyList(triggers)
		}
		if len(l) > 0 {
			spec["lifecycle"] = l
		}
		var needs []string
		for _, a := range r.DependsOn {
			needs = append(needs, celRef(Ref{Target: a}))
		}
		if len(needs) > 0 {
			spec["depends_on"] = anyList(needs)
		}
		metadata := map[string]any{"name": r.Name}
		if id := ids(r.ImportID); r.ImportID != "" && id != "" {
			metadata["annotations"] = map[string]any{"infra.atoll.dev/import-id": id}
		}
		out[r.Address] = map[string]any{"apiVersion": provider(r.Type) + ".providers.atoll.dev/v1", "kind": r.kind(), "metadata": metadata, "spec": spec}
	}
	return out, secrets
}

func anyList(texts []string) []any {
	out := make([]any, len(texts))
	for i := range texts {
		out[i] = texts[i]
	}
	return out
}

func celRef(ref Ref) string {
	text := fmt.Sprintf("%s[%s]", ref.Target.Type, strconv.Quote(ref.Target.Name))
	if ref.Target.Data {
		text = "data." + text
	}
	if ref.Attribute != "" {
		text += "." + ref.Attribute
	}
	return text
}

// objectWriter converts values for an API object and collects sensitive ones for the Secret.
type objectWriter struct {
	key     string
	count   int
	secrets map[string]string
}

func (w *objectWriter) value(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "${", "$${")
	case int:
		return int64(v)
	case BigNumber:
		return string(v)
	case Ref:
		return "${" + celRef(v) + "}"
	case Secret:
		return w.secret(v)
	case Text:
		var b strings.Builder
		for _, part := range v {
			b.WriteString(w.value(part).(string))
		}
		return b.String()
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = w.value(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out[name] = w.value(v[name])
		}
		return out
	}
	return v
}

func (w *objectWriter) secret(s Secret) any {
	key := fmt.Sprintf("%s.%d", w.key, w.count)
	w.count++
	text, is := s.Value.(string)
	if !is {
		encoded, _ := json.Marshal(s.Value) // cannot fail for a map of strings
		text = string(encoded)
	}
	w.secrets[key] = text
	return map[string]any{"secretKeyRef": map[string]any{"name": secretName, "key": key}}
}
