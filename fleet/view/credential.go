package view

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// credential hands out a certificate of a cluster's syncer: to whom RBAC allows the
// path, and to the syncer itself, so that it renews its own. Keys never travel.
//
// All certificates of one credential are good until it is replaced, which is what
// asking for another one does, unless it is to renew.
func (h *Host) credential(w http.ResponseWriter, r *request) {
	if r.Method != http.MethodPost {
		refuse(w, refusal(metav1.StatusReasonMethodNotAllowed, "a credential is asked for by POST"))
		return
	}
	var asked CredentialRequest
	if err := r.read(w, &asked); err != nil {
		refuse(w, err)
		return
	}
	request, err := readRequest(asked.Request)
	if err != nil {
		refuse(w, err)
		return
	}
	// A syncer that could replace its credential could outlive that it is revoked.
	counts, err := r.counting(r.Context(), asked.Renew || r.caller.isSyncer())
	if err != nil {
		refuse(w, err)
		return
	}
	certificate, err := h.cfg.Sign(r.cluster, counts, request)
	if err != nil {
		h.cfg.Log.Error("cannot sign a certificate", "cluster", r.cluster, "error", err)
		refuse(w, refusal(metav1.StatusReasonServiceUnavailable, "the certificate cannot be signed; the server's log says why"))
		return
	}
	h.cfg.Log.Info("handed out a certificate of a cluster's syncer", "cluster", r.cluster, "to", r.caller.Name)
	answer(w, http.StatusOK, Credential{Certificate: string(certificate)})
}

func readRequest(text string) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, refusal(metav1.StatusReasonBadRequest, "request is no certificate request in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, refusal(metav1.StatusReasonBadRequest, "the certificate request is not a good one: %s", err)
	}
	strong := false
	switch key := request.PublicKey.(type) {
	case *ecdsa.PublicKey:
		strong = key.Curve.Params().BitSize >= 256
	case *rsa.PublicKey:
		strong = key.N.BitLen() >= 2048
	case ed25519.PublicKey:
		strong = true
	}
	if !strong {
		return nil, refusal(metav1.StatusReasonBadRequest, "the key of the certificate request is too weak: make one with ECDSA P-256")
	}
	return request, nil
}

// counting gives the credential that counts for the cluster: the one that does
// already, or else a new one. It asks the control plane itself, since what counts is
// what the Cluster says at this moment.
func (r *request) counting(ctx context.Context, keep bool) (string, error) {
	api := r.caches.term.Dynamic.Resource(v1alpha1.ClusterResource)
	u, err := api.Get(ctx, r.cluster, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", refusal(metav1.StatusReasonNotFound, "there is no Cluster %q", r.cluster)
	}
	if err != nil {
		return "", fmt.Errorf("read cluster %s: %w", r.cluster, err)
	}
	c := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c); err != nil {
		return "", fmt.Errorf("read cluster %s: %w", r.cluster, err)
	}
	if r.caller.isSyncer() {
		if err := admit(c, true, r.cluster, r.caller.Groups); err != nil {
			return "", err
		}
	}
	if !c.Pulls() {
		return "", refusal(metav1.StatusReasonConflict, "Cluster %s is in mode Push: its syncer needs no credential", r.cluster)
	}
	if now := c.Annotations[v1alpha1.CredentialAnnotation]; keep && now != "" {
		return now, nil
	}
	made := rand.Text()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.UID,
		"annotations": map[string]any{v1alpha1.CredentialAnnotation: made}}})
	if err != nil {
		return "", err
	}
	if _, err := api.Patch(ctx, r.cluster, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: reporterOf(r.cluster)}); err != nil {
		return "", fmt.Errorf("note the new credential of cluster %s: %w", r.cluster, err)
	}
	return made, nil
}
