package differential

import (
	"encoding/json"
	"strings"
)

// worldSettings returns the provider configuration of one side, with its own directory.
func worldSettings(provider, directory string) map[string]any {
	settings := map[string]any{"directory": directory, "log_reads": false}
	if provider == "demo5" {
		settings["directory"] = directory + "-5"
	}
	return settings
}

// TofuJSON returns a configuration as a .tf.json file. ids returns the ID to import for an address.
func TofuJSON(s *Step, directory string, demo5 bool, ids func(address string) string) ([]byte, error) {
	required, providers := map[string]any{}, map[string]any{}
	for _, name := range providerNames(demo5) {
		required[name] = map[string]any{"source": "providers.test/atoll/" + name}
		providers[name] = worldSettings(name, directory)
	}
	doc := map[string]any{"terraform": map[string]any{"required_providers": required}, "provider": providers}
	resources, data := map[string]map[string]any{}, map[string]map[string]any{}
	var imports, removed []any
	for _, r := range s.Configuration.Resources {
		into := resources
		if r.Data {
			into = data
		}
		if into[r.Type] == nil {
			into[r.Type] = map[string]any{}
		}
		into[r.Type][r.Name] = tofuBody(r)
		if id := ids(r.ImportID); r.ImportID != "" && id != "" {
			imports = append(imports, map[string]any{"to": r.String(), "id": id})
		}
	}
	for _, a := range s.Forget {
		removed = append(removed, map[string]any{"from": a.String(), "lifecycle": map[string]any{"destroy": false}})
	}
	for name, v := range map[string]any{"resource": resources, "data": data, "import": imports, "removed": removed} {
		if text, err := json.Marshal(v); err == nil && len(text) > 4 {
			doc[name] = v
		}
	}
	return json.MarshalIndent(doc, "", "  ")
}

func providerNames(demo5 bool) []string {
	if demo5 {
		return []string{"demo", "demo5"}
	}
	return []string{"demo"}
}

func tofuBody(r *Resource) map[string]any {
	body := tofuValue(r.Arguments).(map[string]any)
	l := map[string]any{}
	if r.Lifecycle.CreateBeforeDestroy {
		l["create_before_destroy"] = true
	}
	if r.Lifecycle.PreventDestroy {
		l["prevent_destroy"] = true
	}
	if len(r.Lifecycle.IgnoreChanges) > 0 {
		l["ignore_changes"] = r.Lifecycle.IgnoreChanges
	}
	var triggers []string
	for _, ref := range r.Lifecycle.ReplaceTriggeredBy {
		triggers = append(triggers, tofuRef(ref))
	}
	if len(triggers) > 0 {
		l["replace_triggered_by"] = triggers
	}
	if len(l) > 0 {
		body["lifecycle"] = l
	}
	var needs []string
	for _, a := range r.DependsOn {
		needs = append(needs, a.String())
	}
	if len(needs) > 0 {
		body["depends_on"] = needs
	}
	return body
}

func tofuRef(ref Ref) string {
	if ref.Attribute == "" {
		return ref.Target.String()
	}
	return ref.Target.String() + "." + ref.Attribute
}

func tofuValue(v any) any {
	switch v := v.(type) {
	case string:
		return tofuText(v)
	case BigNumber:
		return json.Number(v)
	case Ref:
		return "${" + tofuRef(v) + "}"
	case Secret:
		return tofuValue(v.Value)
	case Text:
		var b strings.Builder
		for _, part := range v {
			b.WriteString(tofuValue(part).(string))
		}
		return b.String()
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = tofuValue(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			out[name] = tofuValue(v[name])
		}
		return out
	}
	return v
}

// tofuText escapes template markers.
func tofuText(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "${", "$${"), "%{", "%%{")
}
