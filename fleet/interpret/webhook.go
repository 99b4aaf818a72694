package interpret

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const wordsWebhook = "by the webhook of its ResourceInterpretation"

// applyWebhook lets the webhook of the customization answer its questions.
func (c Customization) applyWebhook(k KindInfo, answers Answers) KindInfo {
	if c.webhook == nil {
		return k
	}
	k.asker = &asker{interpretation: c.Name, uid: c.uid, generation: c.generation, webhook: c.webhook, answers: answers}
	if k.answers(v1alpha1.InterpretReplica) {
		k.Divided, k.replicas, k.indivisible = true, k.asker.replicas, k.asker.uncountable
	}
	if k.answers(v1alpha1.InterpretComponent) {
		k.components, k.DefaultMode, k.Divided, k.scale = k.asker.components, Single, false, nil
	}
	if k.answers(v1alpha1.InterpretDependency) {
		k.needs, k.Descriptions.Needs = k.asker.needs, wordsWebhook
	}
	if k.answers(v1alpha1.InterpretHealth) {
		k.health, k.Descriptions.Health = k.asker.health, wordsWebhook
	}
	if k.answers(v1alpha1.AggregateStatus) {
		k.aggregate, k.Descriptions.Status = k.asker.aggregate, wordsWebhook
	}
	if k.answers(v1alpha1.Retain) {
		k.Descriptions.Left = wordsWebhook
	}
	return k
}

// Unanswered returns an error if a decision about an object lacks an answer of a webhook. Its placement
// must stay then. It asks all that the decision needs.
func (k KindInfo) Unanswered(obj *unstructured.Unstructured) error {
	var missing error
	for _, operation := range []v1alpha1.InterpretationOperation{v1alpha1.InterpretReplica, v1alpha1.InterpretComponent} {
		if !k.answers(operation) {
			continue
		}
		if _, err := k.asker.ask(Question{Operation: operation}, obj.Object, false); err != nil && (missing == nil || IsPending(missing)) {
			missing = err
		}
	}
	return missing
}

// AskAboutLive asks for the health and the collected status of a cluster's object. While an answer is missing, it
// returns an error that IsPending.
func (k KindInfo) AskAboutLive(live *unstructured.Unstructured) error {
	var pending error
	for _, operation := range []v1alpha1.InterpretationOperation{v1alpha1.InterpretHealth, v1alpha1.InterpretStatus} {
		if k.answers(operation) {
			if _, err := k.asker.ask(Question{Operation: operation}, live.Object, true); IsPending(err) {
				pending = err
			}
		}
	}
	return pending
}

func (a *asker) replicas(obj *unstructured.Unstructured) (int32, bool) {
	answer, err := a.ask(Question{Operation: v1alpha1.InterpretReplica}, obj.Object, false)
	if err != nil {
		return 0, false
	}
	return int32(*answer.Replicas), true
}

func (a *asker) uncountable(obj *unstructured.Unstructured) string {
	if _, err := a.ask(Question{Operation: v1alpha1.InterpretReplica}, obj.Object, false); err != nil {
		return "cannot count its replicas: " + err.Error()
	}
	return ""
}

// PodSpec returns the spec of the pods that an object makes; nil if it is not known. A webhook may know
// what one replica requires of an object without a pod template.
func (k KindInfo) PodSpec(obj *unstructured.Unstructured) map[string]any {
	if k.answers(v1alpha1.InterpretReplica) {
		answer, err := k.asker.ask(Question{Operation: v1alpha1.InterpretReplica}, obj.Object, false)
		if err == nil && answer.Pod != nil {
			return answer.Pod
		}
	}
	return PodSpec(obj.Object)
}

func (a *asker) components(obj *unstructured.Unstructured) ([]Component, error) {
	answer, err := a.ask(Question{Operation: v1alpha1.InterpretComponent}, obj.Object, false)
	return slices.Clone(answer.Components), err
}

func (a *asker) needs(obj *unstructured.Unstructured, out *refs) error {
	answer, err := a.ask(Question{Operation: v1alpha1.InterpretDependency}, obj.Object, false)
	for _, d := range answer.Dependencies {
		out.add(Reference{GroupKind: schema.FromAPIVersionAndKind(d.APIVersion, d.Kind).GroupKind(), Namespace: d.Namespace, Name: d.Name})
	}
	return err
}

// health: a webhook says only that an object is not healthy. That cannot distinguish "not yet" from "no
// more", so it is Progressing, and never Degraded.
func (a *asker) health(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	answer, err := a.ask(Question{Operation: v1alpha1.InterpretHealth}, obj.Object, true)
	switch {
	case err != nil:
		return v1alpha1.Unknown, "cannot evaluate the health: " + err.Error()
	case *answer.Healthy:
		return v1alpha1.Healthy, ""
	}
	return v1alpha1.Progressing, "not healthy, says the webhook of ResourceInterpretation " + a.interpretation
}

// CollectedStatus returns the collected part of the status of a cluster's object; nil without a status.
func (k KindInfo) CollectedStatus(live *unstructured.Unstructured) (map[string]any, error) {
	if !k.answers(v1alpha1.InterpretStatus) {
		status, _, _ := unstructured.NestedMap(live.Object, "status")
		return status, nil
	}
	answer, err := k.asker.ask(Question{Operation: v1alpha1.InterpretStatus}, live.Object, true)
	if err != nil {
		return nil, err
	}
	return runtime.DeepCopyJSON(answer.Status), nil
}

func (a *asker) aggregate(_ KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	answer, err := a.ask(Question{Operation: v1alpha1.AggregateStatus, Members: members}, obj.Object, false)
	if err != nil {
		return nil, err
	}
	status := object(answer.Object, "status")
	if status == nil {
		return map[string]any{}, nil
	}
	return runtime.DeepCopyJSON(status), nil
}

// Revise returns the control plane's object with a cluster's share of the replicas, if the webhook of
// the kind writes it. Otherwise it returns the object itself.
func (k KindInfo) Revise(obj *unstructured.Unstructured, share Share) (*unstructured.Unstructured, error) {
	if share.Replicas == nil || !k.answers(v1alpha1.ReviseReplica) {
		return obj, nil
	}
	answer, err := k.asker.ask(Question{Operation: v1alpha1.ReviseReplica, Replicas: share.Replicas}, obj.Object, false)
	if err != nil {
		return nil, err
	}
	out := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(answer.Object)}
	// Otherwise the clusters would not run the decided shares.
	if k.answers(v1alpha1.InterpretReplica) {
		counted, err := k.asker.ask(Question{Operation: v1alpha1.InterpretReplica}, out.Object, false)
		if err != nil {
			return nil, err
		}
		if *counted.Replicas != int64(*share.Replicas) {
			return nil, k.asker.contradiction(v1alpha1.ReviseReplica, "the share is %d replicas, and the webhook counts %d in the object that it revised", *share.Replicas, *counted.Replicas)
		}
	} else if n, found := k.Replicas(out); found && n != *share.Replicas {
		return nil, k.asker.contradiction(v1alpha1.ReviseReplica, "the share is %d replicas, and the revised object has %d", *share.Replicas, n)
	}
	return out, nil
}

// contradiction returns an error for answers that contradict each other or the decision.
func (a *asker) contradiction(operation v1alpha1.InterpretationOperation, format string, args ...any) error {
	return &WaitingError{Interpretation: a.interpretation, Operation: operation, Host: WebhookHost(a.webhook), Cause: fmt.Errorf(format, args...)}
}

// Retain returns a prepared object with the fields that the cluster sets itself, if the webhook of the
// kind knows them. retained reports whether fields were taken from live: another writer may change them
// before the object is applied.
func (k KindInfo) Retain(desired, live *unstructured.Unstructured) (out *unstructured.Unstructured, retained bool, err error) {
	if live == nil || !k.answers(v1alpha1.Retain) {
		return desired, false, nil
	}
	observed, err := json.Marshal(inQuestion(live.Object, false))
	if err != nil {
		return nil, false, fmt.Errorf("encode the object of the cluster: %w", err)
	}
	answer, err := k.asker.ask(Question{Operation: v1alpha1.Retain, Observed: observed}, desired.Object, false)
	if err != nil {
		return nil, false, err
	}
	out = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(answer.Object)}
	delete(out.Object, "status")
	return out, !reflect.DeepEqual(out.Object, desired.Object), nil
}
