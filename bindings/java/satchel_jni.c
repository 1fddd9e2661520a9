/* satchel_jni.c: the native methods of satchel.Model. Handles are pointers in a long; texts are bytes of UTF-8, because JNI's own
 * strings are of another encoding. An error becomes a satchel.SatchelException. */
#include <jni.h>
#include <stdlib.h>

#include "satchel.h"

static void fail(JNIEnv *env, int32_t code, const char *text) {
    jclass kind = (*env)->FindClass(env, "satchel/SatchelException");
    jmethodID init = kind ? (*env)->GetMethodID(env, kind, "<init>", "(ILjava/lang/String;)V") : NULL;
    jstring words = init ? (*env)->NewStringUTF(env, text) : NULL;
    jobject made = words ? (*env)->NewObject(env, kind, init, (jint)code, words) : NULL;
    if (made)
        (*env)->Throw(env, made);
}

JNIEXPORT jlong JNICALL Java_satchel_Model_open(JNIEnv *env, jclass self, jbyteArray path, jint context, jint slots) {
    satchel_model_options options;
    satchel_model *model = NULL;
    jbyte *name = (*env)->GetByteArrayElements(env, path, NULL);
    int32_t code;
    (void)self;
    if (!name)
        return 0;
    satchel_model_options_init(&options, sizeof options);
    options.context = context;
    options.slots = slots;
    if ((code = satchel_open((const char *)name, &options, &model)) < 0)
        fail(env, code, satchel_error());
    (*env)->ReleaseByteArrayElements(env, path, name, JNI_ABORT);
    return (jlong)(intptr_t)model;
}

JNIEXPORT void JNICALL Java_satchel_Model_close(JNIEnv *env, jclass self, jlong model) {
    (void)env, (void)self;
    satchel_close((satchel_model *)(intptr_t)model);
}

JNIEXPORT jlong JNICALL Java_satchel_Model_begin(JNIEnv *env, jclass self, jlong model, jbyteArray text,
                                                 jfloat temperature, jlong max_tokens, jlong seed) {
    satchel_generate_options options;
    satchel_reply *reply = NULL;
    jbyte *raw = (*env)->GetByteArrayElements(env, text, NULL);
    int32_t code;
    (void)self;
    if (!raw)
        return 0;
    satchel_generate_options_init(&options, sizeof options);
    options.temperature = temperature;
    options.max_tokens = max_tokens;
    options.seed = seed;
    code = satchel_generate_text((satchel_model *)(intptr_t)model, (const char *)raw, (*env)->GetArrayLength(env, text),
                                 0, &options, &reply);
    if (code < 0)
        fail(env, code, satchel_error());
    (*env)->ReleaseByteArrayElements(env, text, raw, JNI_ABORT);
    return (jlong)(intptr_t)reply;
}

/* The bytes of the next piece; NULL where the answer is over. */
JNIEXPORT jbyteArray JNICALL Java_satchel_Model_next(JNIEnv *env, jclass self, jlong reply) {
    satchel_piece piece = {.size = sizeof piece};
    int32_t code = satchel_reply_next((satchel_reply *)(intptr_t)reply, &piece);
    jbyteArray bytes;
    (void)self;
    if (code < 0)
        fail(env, code, satchel_error());
    if (code <= 0 || !(bytes = (*env)->NewByteArray(env, (jsize)piece.length)))
        return NULL;
    (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)piece.length, (const jbyte *)piece.text);
    return bytes;
}

JNIEXPORT void JNICALL Java_satchel_Model_free(JNIEnv *env, jclass self, jlong reply) {
    (void)env, (void)self;
    satchel_reply_free((satchel_reply *)(intptr_t)reply);
}
