package httpapi

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// link is what a signed link allows: one method on one file, until it expires.
// It is all in the link itself; the server remembers none.
type link struct {
	account, sandbox string
	method           string // GET or PUT
	expires          time.Time
	mode             fs.FileMode // of a file that is written
	id               string      // names an upload in parts
	path             string
}

const (
	linkVersion = "eqvps-link-1"
	linkFields  = 7
	// maxLinkKey bounds the text of a signed link: a path, and what else there
	// is to it.
	maxLinkKey = 8 << 10
)

// text is what is signed. The path comes last, because it may hold any byte.
func (l link) text() string {
	return strings.Join([]string{
		l.account, l.sandbox, l.method, strconv.FormatInt(l.expires.Unix(), 10), strconv.FormatUint(uint64(l.mode), 8), l.id, l.path,
	}, "\n")
}

func linkMAC(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(linkVersion + "\n" + text))
	return h.Sum(nil)
}

// sign returns the link's key: its signature and what it signs.
func (l link) sign(key []byte) string {
	text := l.text()
	return base64.RawURLEncoding.EncodeToString(append(linkMAC(key, text), text...))
}

// parseLink reads what sign has made with the same key. Nothing of it is looked
// at before the signature.
func parseLink(key []byte, s string) (link, error) {
	bad := eqvps.Errorf(eqvps.CodeInvalidLink, "%s", eqvps.CodeInvalidLink.Kind().Message)
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	// The decoder passes over line breaks, which no link has.
	if err != nil || len(b) < sha256.Size || len(s) > maxLinkKey || strings.ContainsAny(s, "\r\n") {
		return link{}, bad
	}
	mac, text := b[:sha256.Size], string(b[sha256.Size:])
	if !hmac.Equal(mac, linkMAC(key, text)) {
		return link{}, bad
	}
	f := strings.SplitN(text, "\n", linkFields)
	if len(f) != linkFields {
		return link{}, bad
	}
	expires, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		return link{}, bad
	}
	mode, err := eqvps.ParseMode(f[4])
	if err != nil {
		return link{}, bad
	}
	return link{account: f[0], sandbox: f[1], method: f[2], expires: time.Unix(expires, 0), mode: mode, id: f[5], path: f[6]}, nil
}

func (s *server) createLink(ctx context.Context, c *call, in *idInput, body *wire.CreateLink) (wire.Link, error) {
	name, err := body.Name()
	if err == nil {
		err = eqvps.ValidatePath(name)
	}
	if err != nil {
		return wire.Link{}, err
	}
	mode, err := eqvps.ParseMode(body.Mode)
	if err != nil {
		return wire.Link{}, err
	}
	method := body.Method
	switch method {
	case "":
		method = http.MethodGet
	case http.MethodGet, http.MethodPut:
	default:
		return wire.Link{}, eqvps.Errorf(eqvps.CodeInvalidValue, "A link's method is \"GET\" or \"PUT\", not %.20q.", method)
	}
	ttl := eqvps.DefaultLinkTTL
	if body.TTL != nil {
		if *body.TTL < int64(eqvps.MinLinkTTL/time.Second) || *body.TTL > int64(eqvps.MaxLinkTTL/time.Second) {
			return wire.Link{}, eqvps.Errorf(eqvps.CodeInvalidValue, "ttl must be %d to %d seconds.", int(eqvps.MinLinkTTL.Seconds()), int(eqvps.MaxLinkTTL.Seconds()))
		}
		ttl = time.Duration(*body.TTL) * time.Second
	}
	sb, err := s.Sandboxes.Get(ctx, in.ID)
	if err != nil {
		return wire.Link{}, err
	}
	if sb.Ended() {
		return wire.Link{}, eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox has ended (%s).", sb.Reason)
	}
	var id [10]byte
	rand.Read(id[:]) // never fails (crypto/rand, Go 1.24)
	l := link{
		account: sb.AccountID, sandbox: sb.ID, method: method, expires: s.Now().Add(ttl).Truncate(time.Second),
		mode: mode, id: hex.EncodeToString(id[:]), path: name,
	}
	u := s.baseURL(c.r) + wire.Prefix + "/links/" + sb.ID + "?" + url.Values{"key": {l.sign(s.LinkKey)}}.Encode()
	return wire.Link{URL: u, Method: method, ExpiresAt: l.expires.UTC(), MaxPartBytes: eqvps.MaxPartBytes}, nil
}

// baseURL is the server's address as the caller of r can use it: the one he has
// used, or through a local socket the configured one.
func (s *server) baseURL(r *http.Request) string {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && a.Network() == "unix" && s.BaseURL != "" {
		return s.BaseURL
	}
	scheme := "http"
	// It changes nothing but the answer to him who sets the header.
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

type getLinkInput struct {
	ID    string `path:"id" doc:"Id of the sandbox."`
	Key   string `query:"key" required:"true" doc:"The signature, and what it allows."`
	Range string `header:"Range" doc:"One range of bytes, as in downloadFile."`
}

type putLinkInput struct {
	ID     string `path:"id" doc:"Id of the sandbox."`
	Key    string `query:"key" required:"true" doc:"The signature, and what it allows."`
	Offset int64  `query:"offset" minimum:"0" doc:"Where this part begins in the file; with size. Parts come in their order; one may be sent again."`
	Size   int64  `query:"size" minimum:"0" maximum:"2000000000" doc:"Bytes of the whole file. It appears when they are all there."`
}

func (s *server) linkRoutes(readCodes, writeCodes []eqvps.Code, in, out, part *mediaType) {
	handle(s, route{
		method: http.MethodPost, path: "/sandboxes/{id}/files/link", id: "createLink", tag: "files",
		codes:   codes(eqvps.CodeInvalidPath, eqvps.CodeInvalidValue),
		summary: "Make a signed link to one file",
		description: "Whoever has the link can use it, without a token, until it expires: as often as he likes, with its method and path only. " +
			"It ends with its sandbox. The server remembers no links, so one cannot be taken back.",
	}, s.createLink)
	handleRaw(s, route{
		method: http.MethodGet, path: "/links/{id}", id: "getLink", tag: "files", public: true,
		codes: append(readCodes, eqvps.CodeInvalidLink), answer: out, partial: part,
		summary: "Download through a signed link",
	}, func(ctx context.Context, c *call, in *getLinkInput, _ *none) (raw, error) {
		ctx, l, g, err := s.useLink(ctx, c, in.ID, in.Key, http.MethodGet)
		if err != nil {
			return nil, err
		}
		return c.sendFile(ctx, g, l.path)
	})
	handle(s, route{
		method: http.MethodPut, path: "/links/{id}", id: "putLink", tag: "files", public: true,
		codes: append(writeCodes, eqvps.CodeInvalidLink), upload: in,
		summary: "Upload through a signed link",
		description: fmt.Sprintf("Without offset and size the body is the whole file, of at most %d bytes. With them it is one part of it, of at most as many: ", eqvps.MaxPartBytes) +
			"until all size bytes are there, nothing shows at the path. A part that leaves a gap is answered with 422 and the offset that is expected; " +
			"an empty part at offset 0 asks how far the upload is. An upload that is not complete is forgotten when its link expires.",
	}, s.putLink)
}

// useLink checks a link and gives access to its sandbox. The context it returns
// acts for the sandbox's account.
func (s *server) useLink(ctx context.Context, c *call, sandbox, key, method string) (context.Context, link, eqvps.Guest, error) {
	l, err := parseLink(s.LinkKey, key)
	switch {
	case err != nil:
	case l.sandbox != sandbox:
		err = eqvps.Errorf(eqvps.CodeInvalidLink, "The link belongs to another sandbox.")
	case l.method != method:
		err = eqvps.Errorf(eqvps.CodeInvalidLink, "The link is for %s only.", l.method)
	case !s.Now().Before(l.expires):
		err = eqvps.Errorf(eqvps.CodeInvalidLink, "The link's time is over.")
	}
	if err != nil {
		return ctx, link{}, nil, err
	}
	c.principal = eqvps.Principal{AccountID: l.account}
	ctx = eqvps.WithPrincipal(ctx, c.principal)
	g, err := s.Sandboxes.Use(ctx, l.sandbox)
	return ctx, l, g, err
}

func (s *server) putLink(ctx context.Context, c *call, in *putLinkInput, _ *none) (wire.LinkUpload, error) {
	ctx, l, g, err := s.useLink(ctx, c, in.ID, in.Key, http.MethodPut)
	if err != nil {
		c.drain()
		return wire.LinkUpload{}, err
	}
	q := c.r.URL.Query()
	inParts := q.Has("size")
	if q.Has("offset") && !inParts {
		c.drain()
		return wire.LinkUpload{}, eqvps.Errorf(eqvps.CodeInvalidRequest, "A part needs both offset and size, the bytes of the whole file.")
	}
	content, err := c.content(eqvps.MaxPartBytes)
	if err != nil {
		return wire.LinkUpload{}, err
	}
	req := eqvps.UploadRequest{Path: l.path, Mode: l.mode, Content: content, Size: c.r.ContentLength}
	if !inParts {
		fi, err := g.Upload(ctx, req)
		if err != nil {
			return wire.LinkUpload{}, c.uploaded(err)
		}
		return linkUpload(fi.Size, fi.Size, &fi), nil
	}
	p, err := g.UploadPart(ctx, eqvps.UploadPart{
		UploadRequest: req, Upload: l.id, Offset: in.Offset, Total: in.Size, Keep: max(time.Second, l.expires.Sub(s.Now())),
	})
	if err != nil {
		return wire.LinkUpload{}, c.uploaded(err)
	}
	return linkUpload(p.Received, in.Size, p.File), nil
}

func linkUpload(received, size int64, file *eqvps.FileInfo) wire.LinkUpload {
	out := wire.LinkUpload{Received: received, Size: size, Complete: file != nil}
	if file != nil {
		fi := wire.NewFileInfo(*file)
		out.File = &fi
	}
	return out
}
