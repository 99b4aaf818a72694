package placing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/tenancy/mapping"
)

// ReasonNotPlaced is the reason of the Events about objects that the parent does not take.
const ReasonNotPlaced = "NotPlaced"

// maxEvents bounds the Events of one pass.
const maxEvents = 20

// told are the messages of the Events that were written, by the UIDs of their objects.
type told map[string]string

// tell writes an Event for each object that could not be placed, once for each message.
func (p *Placer) tell(ctx context.Context, actions []mapping.Action, out Result) {
	messages := map[string]string{}
	for _, problem := range out.Problems {
		messages[problem.Object] = problem.Message
	}
	written := 0
	still := map[string]string{}
	for _, a := range actions {
		message := messages[describe(a)]
		if a.Source == nil || message == "" {
			continue
		}
		uid := string(a.Source.GetUID())
		if still[uid] = message; p.told[uid] == message {
			continue
		}
		if written++; written > maxEvents {
			delete(still, uid) // the next pass tells it
			continue
		}
		if err := p.event(ctx, a.Source, message); err != nil && ctx.Err() == nil {
			p.Log.Info("write an event about an object that is not placed failed", "workspace", p.Child.Name, "object", describe(a), "error", err)
		}
	}
	p.told = still
}

// event writes an Event about an object of the child.
func (p *Placer) event(ctx context.Context, about *unstructured.Unstructured, message string) error {
	now := metav1.NewTime(p.Clock.Now())
	sum := sha256.Sum256([]byte(string(about.GetUID()) + " " + message))
	event := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Name: about.GetName() + "." + hex.EncodeToString(sum[:8]), Namespace: about.GetNamespace()},
		InvolvedObject: corev1.ObjectReference{APIVersion: about.GetAPIVersion(), Kind: about.GetKind(), Namespace: about.GetNamespace(), Name: about.GetName(), UID: about.GetUID()},
		Type:           corev1.EventTypeWarning, Reason: ReasonNotPlaced, Message: fmt.Sprintf("the workspace above does not take it: %s", message),
		Source: corev1.EventSource{Component: FieldManager}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return err
	}
	api := p.Source.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(about.GetNamespace())
	_, err = api.Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{FieldManager: FieldManager})
	if apierrors.IsAlreadyExists(err) { // it was told by an earlier run
		return nil
	}
	return err
}
