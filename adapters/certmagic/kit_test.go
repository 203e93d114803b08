package certmagiclock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	certmagiclock "github.com/natslock/locks/adapters/certmagic"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// authority is an in-process certificate authority, the issuer of all instances.
type authority struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	asked  atomic.Int64 // calls of Issue
	issued atomic.Int64

	// before is called before the n-th certificate is issued, counting from 1.
	before func(ctx context.Context, n int64) error
}

func newAuthority() *authority {
	a := &authority{before: func(context.Context, int64) error { return nil }}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		log.Fatal(err)
	}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the tests"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		log.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		log.Fatal(err)
	}
	return a
}

func (a *authority) IssuerKey() string { return "authority" }

func (a *authority) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if err := a.before(ctx, a.asked.Add(1)); err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.issued.Add(1)), Subject: csr.Subject, DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// newConfig returns an instance's certmagic, which has its own cache.
func newConfig(storage certmagic.Storage, issuer certmagic.Issuer, logger *zap.Logger) (cfg *certmagic.Config, stop func()) {
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return cfg, nil },
		Logger:           logger,
	})
	cfg = certmagic.New(cache, certmagic.Config{
		Storage: storage,
		Issuers: []certmagic.Issuer{issuer},
		OCSP:    certmagic.OCSPConfig{DisableStapling: true},
		Logger:  logger,
	})
	return cfg, cache.Stop
}

// instance is a process of a cluster, with its own certmagic, storage and client.
type instance struct {
	*certmagic.Config
	storage *certmagiclock.Storage
	locks   *natslock.Client
	errors  *observer.ObservedLogs // errors logged by certmagic
}

// join starts an instance that shares the directory with others.
func join(t *testing.T, nc *nats.Conn, dir string, issuer certmagic.Issuer) *instance {
	locks, err := natslock.New(t.Context(), nc, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, locks.Close(ctx), "a lock is left")
	})
	i := &instance{storage: certmagiclock.New(&certmagic.FileStorage{Path: dir}, locks), locks: locks}
	core, logs := observer.New(zapcore.ErrorLevel)
	i.errors = logs
	cfg, stop := newConfig(i.storage, issuer, zap.New(core))
	i.Config = cfg
	t.Cleanup(stop)
	return i
}

// breakLock breaks the lock that an instance holds. If immediately is set, others need not wait for
// that instance to unlock.
func breakLock(t *testing.T, locks *natslock.Client, name string, immediately bool) {
	t.Helper()
	info, err := admin.New(locks).Inspect(t.Context(), admin.KindMutex, certmagiclock.Prefix+name)
	require.NoError(t, err)
	require.NotNil(t, info.Holder)
	require.NoError(t, admin.New(locks).Break(t.Context(), admin.BreakRequest{Name: info.Name, ID: info.Holder.ID, Reason: "test", Immediately: immediately}))
}
