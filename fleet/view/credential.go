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

// credential issues a certificate for a cluster's syncer: to users whom RBAC allows the path,
// and to the syncer itself, which renews its own. Keys are never transmitted.
//
// All certificates of one credential are valid until the credential is replaced. Every request
// replaces it, except a renewal.
func (h *Host) credential(w http.ResponseWriter, r *request) {
	if r.Method != http.MethodPost {
		writeError(w, newStatusError(metav1.StatusReasonMethodNotAllowed, "a credential must be requested by POST"))
		return
	}
	var in CredentialRequest
	if err := r.read(w, &in); err != nil {
		writeError(w, err)
		return
	}
	request, err := readRequest(in.Request)
	if err != nil {
		writeError(w, err)
		return
	}
	// A syncer that could replace its credential could survive its revocation.
	id, err := r.currentCredential(r.Context(), in.Renew || r.caller.isSyncer())
	if err != nil {
		writeError(w, err)
		return
	}
	certificate, err := h.cfg.Sign(r.cluster, id, request)
	if err != nil {
		h.cfg.Log.Error("sign certificate failed", "cluster", r.cluster, "error", err)
		writeError(w, newStatusError(metav1.StatusReasonServiceUnavailable, "the certificate cannot be signed; for the cause see the server's log"))
		return
	}
	h.cfg.Log.Info("issued a certificate for a cluster's syncer", "cluster", r.cluster, "to", r.caller.Name)
	writeJSON(w, http.StatusOK, Credential{Certificate: string(certificate)})
}

func readRequest(text string) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, newStatusError(metav1.StatusReasonBadRequest, "request is not a certificate request in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, newStatusError(metav1.StatusReasonBadRequest, "invalid certificate request: %s", err)
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
		return nil, newStatusError(metav1.StatusReasonBadRequest, "the key of the certificate request is too weak: use ECDSA P-256")
	}
	return request, nil
}

// currentCredential returns the ID of the cluster's valid credential: the existing one if keep
// is set, or a new one. It reads the Cluster live, because a cached one may be stale.
func (r *request) currentCredential(ctx context.Context, keep bool) (string, error) {
	api := r.caches.session.Dynamic.Resource(v1alpha1.ClusterResource)
	u, err := api.Get(ctx, r.cluster, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", newStatusError(metav1.StatusReasonNotFound, "Cluster %q does not exist", r.cluster)
	}
	if err != nil {
		return "", fmt.Errorf("read cluster %s: %w", r.cluster, err)
	}
	c := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c); err != nil {
		return "", fmt.Errorf("read cluster %s: %w", r.cluster, err)
	}
	if r.caller.isSyncer() {
		if err := authorizeSyncer(c, true, r.cluster, r.caller.Groups); err != nil {
			return "", err
		}
	}
	if !c.InPullMode() {
		return "", newStatusError(metav1.StatusReasonConflict, "Cluster %s is in mode Push: its syncer needs no credential", r.cluster)
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
		return "", fmt.Errorf("record the new credential of cluster %s: %w", r.cluster, err)
	}
	return made, nil
}
