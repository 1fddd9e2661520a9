/* satchel.hpp: satchel.h for C++17: owners that are moved and free what they own, exceptions with the library's words, and answers
 * that a range-for reads. It is a header alone: no type of the standard library crosses the library's boundary, so a program and
 * libsatchel may be built by different compilers.
 *
 *     satchel::Model model("app.gguf");
 *     for (const satchel::Piece &piece : model.generate("Once upon a time"))
 *         std::cout << piece.text << std::flush;
 *
 * A Reply lives no longer than its Model. Threads are as satchel.h says.
 */
#ifndef SATCHEL_HPP
#define SATCHEL_HPP

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "satchel.h"

namespace satchel {

/* A call that failed: what() is satchel_error(), code() is SATCHEL_E_... */
class Error : public std::runtime_error {
  public:
    Error(std::int64_t code, const char *text) : std::runtime_error(text), code_(static_cast<std::int32_t>(code)) {}
    std::int32_t code() const noexcept {
        return code_;
    }

  private:
    std::int32_t code_;
};

namespace detail {
template <typename Number> Number checked(Number code) {
    if (code < 0)
        throw Error(code, satchel_error());
    return code;
}
} // namespace detail

/* The options of satchel.h, with its defaults. */
struct ModelOptions : satchel_model_options {
    ModelOptions() {
        satchel_model_options_init(this, sizeof(satchel_model_options));
    }
};
struct GenerateOptions : satchel_generate_options {
    GenerateOptions() {
        satchel_generate_options_init(this, sizeof(satchel_generate_options));
    }
};

/* A token with its text, whole characters; valid until the reply's next piece. token -1: what is left of a cut character. */
struct Piece {
    std::int32_t token;
    std::string_view text;
};

/* An answer that is under way. Reading goes forward, once. The destructor ends it and frees its slot. */
class Reply {
  public:
    struct End {};
    class Iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Piece;
        using difference_type = std::ptrdiff_t;
        using pointer = const Piece *;
        using reference = const Piece &;

        explicit Iterator(satchel_reply *reply) : reply_(reply) {
            ++*this;
        }
        reference operator*() const noexcept {
            return piece_;
        }
        pointer operator->() const noexcept {
            return &piece_;
        }
        Iterator &operator++() {
            satchel_piece piece = {};
            piece.size = sizeof piece;
            if (detail::checked(satchel_reply_next(reply_, &piece)))
                piece_ = {piece.token, std::string_view(piece.text, static_cast<std::size_t>(piece.length))};
            else
                reply_ = nullptr;
            return *this;
        }
        bool operator!=(End) const noexcept {
            return reply_ != nullptr;
        }
        bool operator==(End) const noexcept {
            return reply_ == nullptr;
        }

      private:
        satchel_reply *reply_; /* null: the answer is over */
        Piece piece_ = {-1, {}};
    };

    explicit Reply(satchel_reply *owned) noexcept : handle_(owned) {}
    Iterator begin() {
        return Iterator(handle_.get());
    }
    End end() const noexcept {
        return {};
    }
    /* All that is left of the answer. */
    std::string read() {
        std::string text;
        for (const Piece &piece : *this)
            text += piece.text;
        return text;
    }
    satchel_reply_report report() const {
        satchel_reply_report report = {};
        report.size = sizeof report;
        detail::checked(satchel_report(handle_.get(), &report));
        return report;
    }
    satchel_reply *handle() const noexcept {
        return handle_.get();
    }

  private:
    struct Free {
        void operator()(satchel_reply *reply) const noexcept {
            satchel_reply_free(reply);
        }
    };
    std::unique_ptr<satchel_reply, Free> handle_;
};

/* A part of a conversation. role: system, user or assistant. */
struct Message {
    std::string role, content;
};

namespace detail {
/* Appends a text as a JSON string. */
inline void quote(const std::string &text, std::string &to) {
    static const char hex[] = "0123456789abcdef";
    to += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\')
            to += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20)
            to += {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        else
            to += c;
    }
    to += '"';
}
struct FreePrompt {
    void operator()(satchel_chat_prompt *prompt) const noexcept {
        satchel_chat_prompt_free(prompt);
    }
};
} // namespace detail

/* An open model. */
class Model {
  public:
    explicit Model(const std::string &path, const ModelOptions &options = ModelOptions()) {
        satchel_model *model = nullptr;
        detail::checked(satchel_open(path.c_str(), &options, &model));
        handle_.reset(model);
    }
    satchel_model_facts facts() const {
        satchel_model_facts facts = {};
        facts.size = sizeof facts;
        detail::checked(satchel_facts(handle_.get(), &facts));
        return facts;
    }
    /* flags: SATCHEL_SPECIAL, SATCHEL_NO_BOS. */
    std::vector<std::int32_t> tokenize(std::string_view text, std::uint32_t flags = 0) const {
        std::vector<std::int32_t> ids(text.size() + 2); /* a token has a byte or more, and two may be added */
        const auto room = static_cast<std::int64_t>(ids.size()), length = static_cast<std::int64_t>(text.size());
        const auto count =
            detail::checked(satchel_tokenize(handle_.get(), begin_of(text), length, flags, ids.data(), room));
        ids.resize(static_cast<std::size_t>(count));
        if (count > room)
            detail::checked(satchel_tokenize(handle_.get(), begin_of(text), length, flags, ids.data(), count));
        return ids;
    }
    std::string detokenize(const std::vector<std::int32_t> &ids, std::uint32_t flags = 0) const {
        const auto count = static_cast<std::int64_t>(ids.size());
        const auto size = detail::checked(satchel_detokenize(handle_.get(), ids.data(), count, flags, nullptr, 0));
        std::string text(static_cast<std::size_t>(size), '\0');
        detail::checked(satchel_detokenize(handle_.get(), ids.data(), count, flags, text.data(), size));
        return text;
    }
    Reply generate(const std::vector<std::int32_t> &ids, const GenerateOptions &options = GenerateOptions()) {
        satchel_reply *reply = nullptr;
        const auto count = static_cast<std::int64_t>(ids.size());
        const std::int32_t none = 0;
        detail::checked(satchel_generate(handle_.get(), count ? ids.data() : &none, count, &options, &reply));
        return Reply(reply);
    }
    Reply generate(std::string_view text, const GenerateOptions &options = GenerateOptions(), std::uint32_t flags = 0) {
        satchel_reply *reply = nullptr;
        const auto length = static_cast<std::int64_t>(text.size());
        detail::checked(satchel_generate_text(handle_.get(), begin_of(text), length, flags, &options, &reply));
        return Reply(reply);
    }
    /* The answer to a conversation, written by the file's chat template. */
    Reply chat(const std::vector<Message> &messages, const GenerateOptions &options = GenerateOptions()) {
        std::string request = "{\"messages\": [";
        for (const Message &message : messages) {
            request += &message == messages.data() ? "{\"role\": " : ", {\"role\": ";
            detail::quote(message.role, request);
            request += ", \"content\": ";
            detail::quote(message.content, request);
            request += '}';
        }
        request += "]}";
        satchel_chat_prompt *made = nullptr;
        const auto length = static_cast<std::int64_t>(request.size());
        detail::checked(satchel_chat_render(handle_.get(), request.c_str(), length, &made));
        const std::unique_ptr<satchel_chat_prompt, detail::FreePrompt> prompt(made);
        satchel_reply *reply = nullptr;
        std::int64_t count = 0;
        const std::int32_t *ids = satchel_chat_prompt_ids(made, &count);
        detail::checked(satchel_generate(handle_.get(), ids, count, &options, &reply));
        return Reply(reply);
    }
    satchel_model *handle() const noexcept {
        return handle_.get();
    }

  private:
    struct Close {
        void operator()(satchel_model *model) const noexcept {
            satchel_close(model);
        }
    };
    static const char *begin_of(std::string_view text) noexcept {
        return text.data() ? text.data() : "";
    }
    std::unique_ptr<satchel_model, Close> handle_;
};

} // namespace satchel

#endif
