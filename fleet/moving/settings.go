package moving

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// settings is the content of a TransitionAnnotation. Fields that this version does not know are kept.
type settings map[string]json.RawMessage

// parseSettings parses the content of an annotation; empty is none.
func parseSettings(text string) (settings, error) {
	out := settings{}
	if text == "" {
		return out, nil
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %w", err)
	}
	if out == nil { // null
		out = settings{}
	}
	if err := json.Unmarshal([]byte(text), &v1alpha1.ObjectTransition{}); err != nil {
		return nil, err
	}
	return out, nil
}

// text returns the content of the annotation; empty if nothing is set.
func (s settings) text() (string, error) {
	if len(s) == 0 {
		return "", nil
	}
	out, err := json.Marshal(s)
	return string(out), err
}

func (s settings) set(field string, value any) (changed bool, err error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return false, err
	}
	changed = string(s[field]) != string(raw)
	s[field] = raw
	return changed, nil
}

// An edit changes settings, and reports whether that changed anything.
type edit func(settings) (changed bool, err error)

// pause stops the steps.
func pause(s settings) (bool, error) { return s.set("paused", true) }

// resume lets the steps go on. If the policy pauses them, the object is made an exception.
func resume(policyPauses bool) edit {
	return func(s settings) (bool, error) {
		if policyPauses {
			return s.set("paused", false)
		}
		paused := string(s["paused"]) == "true"
		if paused {
			delete(s, "paused")
		}
		return paused, nil
	}
}

// abort makes the object go back from the transition with this ID.
func abort(id string) edit {
	return func(s settings) (bool, error) { return s.set("abort", id) }
}

// retryAt has clusters tried again that were avoided before at.
func retryAt(at time.Time) edit {
	return func(s settings) (bool, error) { return s.set("retry", metav1.NewTime(at.UTC())) }
}

// merge applies an edit to the content of an annotation.
func merge(text string, e edit) (next string, changed bool, err error) {
	s, err := parseSettings(text)
	if err != nil {
		return "", false, err
	}
	if changed, err = e(s); err != nil || !changed {
		return text, false, err
	}
	next, err = s.text()
	return next, true, err
}
