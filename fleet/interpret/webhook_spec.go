package interpret

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// asks reports whether a webhook answers a question.
func asks(w *v1alpha1.InterpretationWebhook, operation v1alpha1.InterpretationOperation) bool {
	return w != nil && slices.Contains(w.Operations, operation)
}

// checkWebhook checks the webhook of a customization. One question has one answer: an operation and the
// field for the same thing exclude each other.
func (c *compiler) checkWebhook(spec v1alpha1.ResourceInterpretationSpec) {
	w := spec.Webhook
	if w == nil {
		return
	}
	c.checkAddress(w)
	if t := w.TimeoutSeconds; t != nil && (*t < 1 || *t > 30) {
		c.fail("spec.webhook.timeoutSeconds", fmt.Errorf("%d: want 1 to 30", *t))
	}
	if len(w.Operations) == 0 {
		c.fail("spec.webhook.operations", errors.New("list the questions that the webhook answers, such as InterpretHealth"))
	}
	for _, pair := range []struct {
		operation v1alpha1.InterpretationOperation
		field     string
		set       bool
	}{
		{v1alpha1.InterpretReplica, "spec.replicas.count", spec.Replicas != nil && strings.TrimSpace(spec.Replicas.Count) != ""},
		{v1alpha1.InterpretComponent, "spec.components", strings.TrimSpace(spec.Components) != ""},
		{v1alpha1.ReviseReplica, "spec.replicas", spec.Replicas != nil},
		{v1alpha1.Retain, "spec.retain", len(spec.Retain) > 0},
		{v1alpha1.AggregateStatus, "spec.status", len(spec.Status) > 0},
		{v1alpha1.InterpretHealth, "spec.health", strings.TrimSpace(spec.Health) != ""},
		{v1alpha1.InterpretDependency, "spec.needs", strings.TrimSpace(spec.Needs) != ""},
	} {
		if asks(w, pair.operation) && pair.set {
			c.fail("spec.webhook.operations", fmt.Errorf("%s and %s both answer this: remove one of them", pair.operation, pair.field))
		}
	}
	if asks(w, v1alpha1.InterpretReplica) && !asks(w, v1alpha1.ReviseReplica) && spec.Replicas == nil {
		c.fail("spec.webhook.operations", errors.New("InterpretReplica requires ReviseReplica, or spec.replicas.path: otherwise each cluster would run all replicas"))
	}
	if asks(w, v1alpha1.InterpretReplica) && asks(w, v1alpha1.InterpretComponent) {
		c.fail("spec.webhook.operations", errors.New("an object with components cannot be divided: remove InterpretReplica or InterpretComponent"))
	}
	if asks(w, v1alpha1.InterpretComponent) && (spec.Replicas != nil || spec.Mode == string(Divided)) {
		c.fail("spec.webhook.operations", errors.New("an object with components cannot be divided: remove InterpretComponent, or spec.replicas and mode Divided"))
	}
	if asks(w, v1alpha1.InterpretReplica) && strings.TrimSpace(spec.Components) != "" {
		c.fail("spec.components", errors.New("an object with components cannot be divided: remove it, or InterpretReplica in spec.webhook.operations"))
	}
}

func (c *compiler) checkAddress(w *v1alpha1.InterpretationWebhook) {
	u, err := url.Parse(w.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// The URL is not quoted: it may contain a password.
		c.fail("spec.webhook.url", errors.New("want https://HOST/PATH without user, query and fragment. Services are not resolved: publish the webhook at an address that Atoll's servers reach"))
	}
	if len(w.CABundle) > 0 && !x509.NewCertPool().AppendCertsFromPEM(w.CABundle) {
		c.fail("spec.webhook.caBundle", errors.New("has no certificate: want certificates in PEM, encoded in base64"))
	}
}
