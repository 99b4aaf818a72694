package interpret

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Answers has the answers of webhooks. This package does not call webhooks: whoever passes it a
// Catalog decides where answers come from.
type Answers interface {
	// Answer returns the answer to a question, which has passed Question.Check. It does not wait. The
	// error is ErrPending if the question was not asked before, and otherwise why there is no answer.
	// The answer must not be modified.
	Answer(q Question) (Answer, error)
}

// ErrPending is returned until a question has been asked for the first time.
var ErrPending = errors.New("not asked yet")

// Question is one question to the webhook of a ResourceInterpretation. Objects are in JSON, without
// what makes no difference to the answer, so that equal questions are equal bytes.
type Question struct {
	// Interpretation is the ResourceInterpretation, and Webhook its webhook.
	Interpretation string
	UID            types.UID
	Generation     int64
	Webhook        *v1alpha1.InterpretationWebhook

	Operation v1alpha1.InterpretationOperation
	Kind      schema.GroupVersionKind
	Namespace string
	Name      string
	// Cluster is the only one that needs the answer; "" if others may need it.
	Cluster string
	// Object is the control plane's object; for Retain the object as the cluster should have it; for
	// InterpretHealth and InterpretStatus the cluster's object.
	Object json.RawMessage
	// Observed is the cluster's object. Only Retain has it.
	Observed json.RawMessage
	// Replicas is the cluster's share. Only ReviseReplica has it.
	Replicas *int32
	// Members are the clusters' reports. Only AggregateStatus has them.
	Members []MemberStatus

	// key identifies the question among those to one webhook.
	key string
}

// Subject returns the object that the question is about. The objects of all clusters have its name.
func (q Question) Subject() Reference {
	return Reference{GroupKind: q.Kind.GroupKind(), Namespace: q.Namespace, Name: q.Name}
}

// Key is equal for equal questions, and differs if the ResourceInterpretation has changed.
func (q Question) Key() string {
	return fmt.Sprintf("%s/%s/%d/%s/%s", q.Interpretation, q.UID, q.Generation, q.Operation, q.key)
}

// WaitingError is returned where an answer is needed that a webhook has not given. Nothing may be
// concluded from it.
type WaitingError struct {
	Interpretation string
	Operation      v1alpha1.InterpretationOperation
	// Host of the webhook.
	Host string
	// Cause is why there is no answer, or ErrPending.
	Cause error
}

func (e *WaitingError) Error() string {
	if errors.Is(e.Cause, ErrPending) {
		return fmt.Sprintf("waiting for the webhook of ResourceInterpretation %s to answer %s", e.Interpretation, e.Operation)
	}
	return fmt.Sprintf("the webhook of ResourceInterpretation %s at %s has not answered %s: %v", e.Interpretation, e.Host, e.Operation, e.Cause)
}

func (e *WaitingError) Unwrap() error { return e.Cause }

// RefusedError is a response of a webhook that has no usable answer. The webhook works: other questions may be
// answered.
type RefusedError struct{ Cause error }

func (e *RefusedError) Error() string { return e.Cause.Error() }

func (e *RefusedError) Unwrap() error { return e.Cause }

// IsWaiting reports whether an error is a missing answer of a webhook.
func IsWaiting(err error) bool {
	var waiting *WaitingError
	return errors.As(err, &waiting)
}

// IsPending reports whether an error is an answer that has just been requested: the object is decided again
// when it arrives, or when it is known that it does not.
func IsPending(err error) bool { return IsWaiting(err) && errors.Is(err, ErrPending) }

// asker asks the webhook of a customization.
type asker struct {
	interpretation string
	uid            types.UID
	generation     int64
	webhook        *v1alpha1.InterpretationWebhook
	answers        Answers
}

// answers reports whether the webhook of the kind answers a question.
func (k KindInfo) answers(operation v1alpha1.InterpretationOperation) bool {
	return k.asker != nil && slices.Contains(k.asker.webhook.Operations, operation)
}

// ask completes a question about an object, and returns its answer. keepStatus says that the status is
// part of the question.
func (a *asker) ask(q Question, obj map[string]any, keepStatus bool) (Answer, error) {
	q, err := a.question(q, obj, keepStatus)
	var out Answer
	switch {
	case err != nil:
	case a.answers == nil:
		err = errors.New("this program does not ask webhooks")
	default:
		out, err = a.answers.Answer(q)
	}
	if err != nil {
		return Answer{}, &WaitingError{Interpretation: a.interpretation, Operation: q.Operation, Host: WebhookHost(a.webhook), Cause: err}
	}
	return out, nil
}

// question completes a question about an object.
func (a *asker) question(q Question, obj map[string]any, keepStatus bool) (Question, error) {
	u := unstructured.Unstructured{Object: obj}
	q.Interpretation, q.UID, q.Generation, q.Webhook = a.interpretation, a.uid, a.generation, a.webhook
	q.Kind, q.Namespace, q.Name, q.Cluster = u.GroupVersionKind(), u.GetNamespace(), u.GetName(), u.GetAnnotations()[v1alpha1.ClusterAnnotation]
	return q.about(obj, keepStatus)
}

// QuestionOf returns a question of a syncer that runs elsewhere. It may ask only about its cluster's object.
func (k KindInfo) QuestionOf(operation v1alpha1.InterpretationOperation, obj, observed json.RawMessage) (Question, error) {
	if operation != v1alpha1.InterpretHealth && operation != v1alpha1.InterpretStatus && operation != v1alpha1.Retain || !k.answers(operation) {
		return Question{}, fmt.Errorf("no webhook answers %q about objects of kind %s in clusters", operation, k.Kind)
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(obj, &content); err != nil {
		return Question{}, fmt.Errorf("decode the object: %w", err)
	}
	return k.asker.question(Question{Operation: operation, Observed: observed}, content, operation != v1alpha1.Retain)
}

// about sets the object, and the key. A summary replaces the status of the object, which is therefore
// sent, and is no part of the key: otherwise each summary would lead to another question.
func (q Question) about(obj map[string]any, keepStatus bool) (Question, error) {
	inKey, err := json.Marshal(inQuestion(obj, keepStatus))
	if err != nil {
		return q, err
	}
	q.Object = inKey
	if q.Operation == v1alpha1.AggregateStatus {
		if q.Object, err = json.Marshal(inQuestion(obj, true)); err != nil {
			return q, err
		}
	}
	rest, err := json.Marshal(struct {
		Replicas *int32
		Members  []MemberStatus
	}{q.Replicas, q.Members})
	if err != nil {
		return q, err
	}
	sum := sha256.Sum256(bytes.Join([][]byte{inKey, q.Observed, rest}, []byte{0}))
	q.key = hex.EncodeToString(sum[:16])
	return q, nil
}

// inQuestion returns an object without what makes no difference to an answer: who wrote it, and how often.
// Without keepStatus that includes its status. It shares its fields with the object.
func inQuestion(obj map[string]any, keepStatus bool) map[string]any {
	out := maps.Clone(obj)
	without := []string{"managedFields", "resourceVersion"}
	if !keepStatus {
		delete(out, "status")
		without = append(without, "generation")
	}
	if meta, ok := out["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		for _, field := range without {
			delete(meta, field)
		}
		out["metadata"] = meta
	}
	return out
}

// WebhookHost returns the host of a webhook, for messages: its path may be a secret.
func WebhookHost(w *v1alpha1.InterpretationWebhook) string {
	u, err := url.Parse(w.URL)
	if err != nil {
		return "an invalid URL"
	}
	return u.Host
}
